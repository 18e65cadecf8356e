//! The part of gpuloss.h that losses.rs calls, under the names of C; gpuloss.h documents all of it.
//! tests/languages/run.sh compares every line with the header.
#![allow(non_camel_case_types, dead_code)]

use std::mem::size_of;
use std::os::raw::{c_char, c_int, c_uint, c_void};

pub const GPULOSS_VERSION_MAJOR: c_uint = 0;
pub const GPULOSS_VERSION_MINOR: c_uint = 1;
pub const GPULOSS_VERSION_PATCH: c_uint = 0;
pub const GPULOSS_VERSION: c_uint = GPULOSS_VERSION_MAJOR * 10000 + GPULOSS_VERSION_MINOR * 100 + GPULOSS_VERSION_PATCH;

pub type gpuloss_status = c_uint;
pub const GPULOSS_OK: gpuloss_status = 0;

pub type gpuloss_status_group = c_uint;
pub const GPULOSS_GROUP_ENVIRONMENT: gpuloss_status_group = 2;

pub type gpuloss_dtype = c_uint;
pub const GPULOSS_F32: gpuloss_dtype = 1;

pub type gpuloss_reduction = c_uint;
pub const GPULOSS_MEAN: gpuloss_reduction = 3;
pub const GPULOSS_BATCHMEAN: gpuloss_reduction = 4;

pub type gpuloss_index_type = c_uint;
pub const GPULOSS_I32: gpuloss_index_type = 2;

pub type gpuloss_kind = c_uint;
pub const GPULOSS_LOGITS: gpuloss_kind = 3;

pub type gpuloss_divergence = c_uint;
pub const GPULOSS_FORWARD_KL: gpuloss_divergence = 0;

pub type gpuloss_residual = c_uint;

// / A flag of gpuloss_create_desc.
pub const GPULOSS_CHECK_POINTERS: c_uint = 1;

#[repr(C)]
pub struct CUctx_st {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct CUstream_st {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct gpuloss_context {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct gpuloss_create_desc {
    pub cuda_context: *mut CUctx_st,
    pub device: c_int,
    pub driver_path: *const c_char,
    pub symbol: Option<unsafe extern "C" fn(user: *mut c_void, name: *const c_char) -> *mut c_void>,
    pub symbol_user: *mut c_void,
    pub flags: c_uint,
}

#[repr(C)]
pub struct gpuloss_info {
    pub device_name: [c_char; 256],
    pub device: c_int,
    pub compute_capability: c_int,
    pub multiprocessors: c_int,
    pub driver_version: c_int,
    pub kernels_loaded: c_int,
    pub scratch_bytes: usize,
}

#[repr(C)]
pub struct gpuloss_shard_row {
    pub max: f64,
    pub sum: f64,
    pub target_logit: f64,
    pub smooth_weight: f64,
    pub smooth_sum: f64,
    pub argmax: f64,
}

#[repr(C)]
pub struct gpuloss_cross_entropy_desc {
    pub logits: *const c_void,
    pub logits_stride: i64,
    pub targets: *const c_void,
    pub target_probabilities: *const c_void,
    pub target_probabilities_stride: i64,
    pub rows: i64,
    pub classes: i64,
    pub inner: i64,
    pub dtype: gpuloss_dtype,
    pub grad_dtype: gpuloss_dtype,
    pub target_dtype: gpuloss_dtype,
    pub target_type: gpuloss_index_type,
    pub reduction: gpuloss_reduction,
    pub flags: c_uint,
    pub ignore_index: i64,
    pub class_weights: *const c_void,
    pub row_weights: *const c_void,
    pub label_smoothing: f64,
    pub lse_square_scale: f64,
    pub logit_scale: f64,
    pub softcap: f64,
    pub divisor: f64,
    pub divisor_in: *const c_void,
    pub loss: *mut c_void,
    pub loss_rows: *mut c_void,
    pub z_loss: *mut c_void,
    pub z_loss_rows: *mut c_void,
    pub lse: *mut c_void,
    pub argmax: *mut i64,
    pub correct: *mut i64,
    pub bad_targets: *mut i64,
    pub grad_logits: *mut c_void,
    pub grad_logits_stride: i64,
    pub grad_target_probabilities: *mut c_void,
    pub grad_target_probabilities_stride: i64,
    pub grad_scale: f64,
    pub grad_loss: *const c_void,
    pub grad_loss_rows: *const c_void,
    pub lse_in: *const c_void,
    pub total_classes: i64,
    pub class_offset: i64,
    pub shard_rows: *mut gpuloss_shard_row,
    pub shards: i64,
    pub workspace: *mut c_void,
    pub workspace_bytes: usize,
}

#[repr(C)]
pub struct gpuloss_kl_div_desc {
    pub input: *const c_void,
    pub input_stride: i64,
    pub target: *const c_void,
    pub target_stride: i64,
    pub rows: i64,
    pub classes: i64,
    pub inner: i64,
    pub dtype: gpuloss_dtype,
    pub target_dtype: gpuloss_dtype,
    pub input_kind: gpuloss_kind,
    pub target_kind: gpuloss_kind,
    pub divergence: gpuloss_divergence,
    pub reduction: gpuloss_reduction,
    pub flags: c_uint,
    pub beta: f64,
    pub temperature: f64,
    pub eps: f64,
    pub row_weights: *const c_void,
    pub labels: *const c_void,
    pub label_type: gpuloss_index_type,
    pub ignore_index: i64,
    pub divisor: f64,
    pub divisor_in: *const c_void,
    pub loss: *mut c_void,
    pub loss_rows: *mut c_void,
    pub loss_elements: *mut c_void,
    pub loss_elements_stride: i64,
    pub grad_input: *mut c_void,
    pub grad_input_stride: i64,
    pub grad_target: *mut c_void,
    pub grad_target_stride: i64,
    pub grad_scale: f64,
    pub grad_loss: *const c_void,
    pub grad_loss_rows: *const c_void,
    pub workspace: *mut c_void,
    pub workspace_bytes: usize,
}

/// Is declared for GPULOSS_DESC_BYTES, which has its size.
#[repr(C)]
pub struct gpuloss_kl_div_sparse_desc {
    pub logits: *const c_void,
    pub logits_stride: i64,
    pub indices: *const c_void,
    pub indices_stride: i64,
    pub values: *const c_void,
    pub values_stride: i64,
    pub rows: i64,
    pub classes: i64,
    pub k: i64,
    pub dtype: gpuloss_dtype,
    pub value_dtype: gpuloss_dtype,
    pub index_type: gpuloss_index_type,
    pub value_kind: gpuloss_kind,
    pub residual: gpuloss_residual,
    pub divergence: gpuloss_divergence,
    pub reduction: gpuloss_reduction,
    pub flags: c_uint,
    pub beta: f64,
    pub temperature: f64,
    pub row_weights: *const c_void,
    pub labels: *const c_void,
    pub label_type: gpuloss_index_type,
    pub ignore_index: i64,
    pub divisor: f64,
    pub divisor_in: *const c_void,
    pub loss: *mut c_void,
    pub loss_rows: *mut c_void,
    pub grad_logits: *mut c_void,
    pub grad_logits_stride: i64,
    pub bad_indices: *mut i64,
    pub grad_scale: f64,
    pub grad_loss: *const c_void,
    pub grad_loss_rows: *const c_void,
    pub workspace: *mut c_void,
    pub workspace_bytes: usize,
}

pub const GPULOSS_DESC_BYTES: usize = size_of::<gpuloss_create_desc>()
    + size_of::<gpuloss_cross_entropy_desc>()
    + size_of::<gpuloss_kl_div_desc>()
    + size_of::<gpuloss_kl_div_sparse_desc>();

extern "C" {
    pub fn gpuloss_group_of(status: gpuloss_status) -> gpuloss_status_group;
    pub fn gpuloss_last_error() -> *const c_char;
    pub fn gpuloss_create_versioned(
        context: *mut *mut gpuloss_context,
        desc: *const gpuloss_create_desc,
        header_version: c_uint,
        desc_bytes: usize,
    ) -> gpuloss_status;
    pub fn gpuloss_destroy(context: *mut gpuloss_context);
    pub fn gpuloss_get_info(context: *mut gpuloss_context, info: *mut gpuloss_info) -> gpuloss_status;
    pub fn gpuloss_cross_entropy(
        context: *mut gpuloss_context,
        desc: *const gpuloss_cross_entropy_desc,
        stream: *mut CUstream_st,
    ) -> gpuloss_status;
    pub fn gpuloss_kl_div(
        context: *mut gpuloss_context,
        desc: *const gpuloss_kl_div_desc,
        stream: *mut CUstream_st,
    ) -> gpuloss_status;
    pub fn gpuloss_alloc(context: *mut gpuloss_context, pointer: *mut *mut c_void, bytes: usize) -> gpuloss_status;
    pub fn gpuloss_free(context: *mut gpuloss_context, pointer: *mut c_void) -> gpuloss_status;
    pub fn gpuloss_upload(
        context: *mut gpuloss_context,
        device: *mut c_void,
        host: *const c_void,
        bytes: usize,
        stream: *mut CUstream_st,
    ) -> gpuloss_status;
    pub fn gpuloss_download(
        context: *mut gpuloss_context,
        host: *mut c_void,
        device: *const c_void,
        bytes: usize,
        stream: *mut CUstream_st,
    ) -> gpuloss_status;
}
