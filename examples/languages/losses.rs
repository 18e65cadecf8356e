//! Cross-entropy with its gradient, and a KL divergence, from Rust. In the top folder of gpuloss:
//!     make shared
//!     rustc -O -L build -l gpuloss examples/languages/losses.rs -o build/losses_rust
//!     LD_LIBRARY_PATH=build build/losses_rust
//! Each result is compared with a reference in double precision.
//! Exit status: 0, 1 if a comparison failed, 2 if this machine lacks something, 3 for other errors.

mod gpuloss_sys;

use gpuloss_sys::*;
use std::ffi::CStr;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{size_of, size_of_val, zeroed, MaybeUninit};
use std::os::raw::c_void;
use std::process::ExitCode;
use std::ptr::{null_mut, NonNull};

// ---- a safe wrapper ----

struct Error {
    message: String,
    is_environment: bool,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.message)
    }
}

type Result<T> = std::result::Result<T, Error>;

/// A status as a Result. The message is that of this thread's last failure, so it is copied before another call.
fn check(status: gpuloss_status) -> Result<()> {
    if status == GPULOSS_OK {
        return Ok(());
    }
    // SAFETY: the message is never null, and lives until the next failure of this thread.
    let message = unsafe { CStr::from_ptr(gpuloss_last_error()) }.to_string_lossy().into_owned();
    let is_environment = unsafe { gpuloss_group_of(status) } == GPULOSS_GROUP_ENVIRONMENT;
    Err(Error { message, is_environment })
}

fn check_length(name: &str, length: usize, rows: usize, columns: usize) -> Result<()> {
    if rows.checked_mul(columns) == Some(length) {
        return Ok(());
    }
    let message = format!("{name}: needs {rows} x {columns} elements (got {length})");
    Err(Error { message, is_environment: false })
}

/// A type whose values may have any bits.
trait Element: Copy {}
impl Element for f32 {}
impl Element for i32 {}

struct Gpu {
    context: NonNull<gpuloss_context>,
}

impl Gpu {
    fn new() -> Result<Gpu> {
        let mut context = null_mut();
        // SAFETY: zero is a valid value of each field of a desc, and means that it is not given.
        let mut desc: gpuloss_create_desc = unsafe { zeroed() };
        desc.flags = GPULOSS_CHECK_POINTERS; // while a program is new
        check(unsafe { gpuloss_create_versioned(&mut context, &desc, GPULOSS_VERSION, GPULOSS_DESC_BYTES) })?;
        Ok(Gpu { context: NonNull::new(context).expect("a context that was created is not null") })
    }

    fn name(&self) -> Result<String> {
        let mut info = MaybeUninit::<gpuloss_info>::uninit();
        check(unsafe { gpuloss_get_info(self.context.as_ptr(), info.as_mut_ptr()) })?;
        // SAFETY: the call succeeded and has filled info, in which the name ends with a zero.
        let info = unsafe { info.assume_init() };
        Ok(unsafe { CStr::from_ptr(info.device_name.as_ptr()) }.to_string_lossy().into_owned())
    }

    fn alloc<T: Element>(&self, length: usize) -> Result<Buffer<'_, T>> {
        let mut address = null_mut();
        let bytes = length.saturating_mul(size_of::<T>()); // more than there is, rather than less than was requested
        check(unsafe { gpuloss_alloc(self.context.as_ptr(), &mut address, bytes) })?;
        Ok(Buffer { gpu: self, address, length, element: PhantomData })
    }

    fn upload<T: Element>(&self, host: &[T]) -> Result<Buffer<'_, T>> {
        let buffer = self.alloc(host.len())?;
        let from = host.as_ptr().cast();
        check(unsafe { gpuloss_upload(self.context.as_ptr(), buffer.address, from, size_of_val(host), null_mut()) })?;
        Ok(buffer)
    }

    /// The mean over the targets, and its gradient.
    fn cross_entropy(
        &self,
        logits: &Buffer<f32>,
        targets: &Buffer<i32>,
        classes: usize,
        loss: &mut Buffer<f32>,
        grad: &mut Buffer<f32>,
    ) -> Result<()> {
        let rows = targets.length;
        check_length("logits", logits.length, rows, classes)?;
        check_length("loss", loss.length, 1, 1)?;
        check_length("grad", grad.length, rows, classes)?;
        // SAFETY: as in `new`; the arrays are as long as the call reads and writes.
        let mut desc: gpuloss_cross_entropy_desc = unsafe { zeroed() };
        desc.logits = logits.address;
        desc.dtype = GPULOSS_F32;
        desc.targets = targets.address;
        desc.target_type = GPULOSS_I32;
        desc.rows = rows as i64;
        desc.classes = classes as i64;
        desc.reduction = GPULOSS_MEAN;
        desc.loss = loss.address;
        desc.grad_logits = grad.address;
        check(unsafe { gpuloss_cross_entropy(self.context.as_ptr(), &desc, null_mut()) })
    }

    /// KL(teacher || student) of the softmax of each, the mean over rows.
    fn kl_div(
        &self,
        student: &Buffer<f32>,
        teacher: &Buffer<f32>,
        rows: usize,
        classes: usize,
        loss: &mut Buffer<f32>,
    ) -> Result<()> {
        check_length("student", student.length, rows, classes)?;
        check_length("teacher", teacher.length, rows, classes)?;
        check_length("loss", loss.length, 1, 1)?;
        // SAFETY: as in `cross_entropy`.
        let mut desc: gpuloss_kl_div_desc = unsafe { zeroed() };
        desc.input = student.address;
        desc.target = teacher.address;
        desc.dtype = GPULOSS_F32;
        desc.input_kind = GPULOSS_LOGITS;
        desc.target_kind = GPULOSS_LOGITS;
        desc.divergence = GPULOSS_FORWARD_KL;
        desc.reduction = GPULOSS_BATCHMEAN;
        desc.rows = rows as i64;
        desc.classes = classes as i64;
        desc.loss = loss.address;
        check(unsafe { gpuloss_kl_div(self.context.as_ptr(), &desc, null_mut()) })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: the context was created, and every Buffer, which borrows it, is gone.
        unsafe { gpuloss_destroy(self.context.as_ptr()) }
    }
}

/// An array in device memory.
struct Buffer<'gpu, T: Element> {
    gpu: &'gpu Gpu,
    address: *mut c_void,
    length: usize,
    element: PhantomData<T>,
}

impl<T: Element> Buffer<'_, T> {
    fn download(&self) -> Result<Vec<T>> {
        let mut host = Vec::<T>::with_capacity(self.length);
        let (to, bytes) = (host.as_mut_ptr().cast(), self.length * size_of::<T>());
        check(unsafe { gpuloss_download(self.gpu.context.as_ptr(), to, self.address, bytes, null_mut()) })?;
        // SAFETY: the call succeeded and has filled the capacity.
        unsafe { host.set_len(self.length) };
        Ok(host)
    }
}

impl<T: Element> Drop for Buffer<'_, T> {
    fn drop(&mut self) {
        if let Err(error) = check(unsafe { gpuloss_free(self.gpu.context.as_ptr(), self.address) }) {
            eprintln!("{error}");
        }
    }
}

// ---- the reference ----

const ROWS: usize = 32;
const CLASSES: usize = 50;

/// Multiples of 1/32 in [-1, 1), which floats hold exactly.
fn some_logits(mut state: u32) -> Vec<f32> {
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        ((state >> 16) % 64) as f32 / 32.0 - 1.0
    };
    (0..ROWS * CLASSES).map(|_| next()).collect()
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let lse = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
    row.iter().map(|&x| f64::from(x) - lse).collect()
}

/// The loss, and the gradient of each logit.
fn reference_cross_entropy(logits: &[f32], targets: &[i32]) -> (f64, Vec<f64>) {
    let (mut loss, mut grad) = (0.0, Vec::new());
    for (row, &target) in logits.chunks(CLASSES).zip(targets) {
        let log_p = log_softmax(row);
        let target = target as usize;
        loss -= log_p[target] / ROWS as f64;
        grad.extend(log_p.iter().enumerate().map(|(c, l)| (l.exp() - f64::from(u8::from(c == target))) / ROWS as f64));
    }
    (loss, grad)
}

fn reference_kl_div(student: &[f32], teacher: &[f32]) -> f64 {
    let rows = student.chunks(CLASSES).zip(teacher.chunks(CLASSES));
    let loss_of_row = |(q, t)| -> f64 {
        let terms = log_softmax(t).into_iter().zip(log_softmax(q));
        terms.map(|(log_t, log_q)| log_t.exp() * (log_t - log_q)).sum()
    };
    rows.map(loss_of_row).sum::<f64>() / ROWS as f64
}

// ---- the comparison ----

/// The bounds below count roundings of floats, to first order. The logits of a row differ by less than 2, and log(CLASSES)
/// is below 4.
const ROUNDING: f64 = 1.0 / 16777216.0;
/// exp() is within 6 roundings, and its argument within 3 of its size.
const EXP: f64 = 6.0 + 3.0 * 2.0;
/// An addition a class; and a tree of 6 levels, which multiplies by an exponential (7) in each.
const SUM: f64 = EXP + CLASSES as f64 + 6.0 * 7.0;
/// The logarithm is within 2 of its size.
const LOG_SUM: f64 = SUM + 2.0 * 4.0;
/// The quotient exp / sum.
const PROBABILITY: f64 = EXP + SUM + 3.0;
/// log sum less a distance, below 6, is rounded; so is the mean.
const CROSS_ENTROPY_BOUND: f64 = (LOG_SUM + 2.0 * 6.0) * ROUNDING;
/// p - 1 and the product with 1 / ROWS are rounded, and that factor up to 6 times.
const GRADIENT_BOUND: f64 = (PROBABILITY + 8.0) * ROUNDING / ROWS as f64;
/// |log t - log q| is below 4. It comes from two log sums in three operations. Its product with t is rounded, and added.
const KL_DIV_BOUND: f64 = (2.0 * LOG_SUM + 4.0 * (3.0 + PROBABILITY + 1.0 + CLASSES as f64 + 1.0)) * ROUNDING;

/// Prints the largest error, which has to be within the bound.
fn compare(name: &str, got: &[f32], want: &[f64], bound: f64) -> bool {
    // A NaN is larger than any number.
    let larger = |worst: f64, error: f64| if error <= worst { worst } else { error };
    let error = got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).abs()).fold(0.0, larger);
    let passed = got.len() == want.len() && error <= bound;
    println!("{name:14} error {error:.1e} of at most {bound:.1e}: {}", if passed { "pass" } else { "FAIL" });
    passed
}

/// Whether all comparisons passed.
fn run() -> Result<bool> {
    let logits = some_logits(1);
    let teacher = some_logits(2);
    let targets: Vec<i32> = (0..ROWS).map(|i| (i * 7 % CLASSES) as i32).collect();

    let gpu = Gpu::new()?;
    println!("cross-entropy and KL divergence of {ROWS} rows and {CLASSES} classes, from Rust, on {}", gpu.name()?);
    let gpu_logits = gpu.upload(&logits)?;
    let gpu_teacher = gpu.upload(&teacher)?;
    let gpu_targets = gpu.upload(&targets)?;
    let mut gpu_grad = gpu.alloc(ROWS * CLASSES)?;
    let mut gpu_loss = gpu.alloc(1)?;

    gpu.cross_entropy(&gpu_logits, &gpu_targets, CLASSES, &mut gpu_loss, &mut gpu_grad)?;
    let (loss, grad) = reference_cross_entropy(&logits, &targets);
    let mut passed = compare("cross-entropy", &gpu_loss.download()?, &[loss], CROSS_ENTROPY_BOUND);
    passed &= compare("its gradient", &gpu_grad.download()?, &grad, GRADIENT_BOUND);

    gpu.kl_div(&gpu_logits, &gpu_teacher, ROWS, CLASSES, &mut gpu_loss)?;
    let loss = reference_kl_div(&logits, &teacher);
    passed &= compare("KL divergence", &gpu_loss.download()?, &[loss], KL_DIV_BOUND);
    Ok(passed)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(if error.is_environment { 2 } else { 3 })
        }
    }
}
