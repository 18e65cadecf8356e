// Cross-entropy with its gradient, and a KL divergence, from Go. In the top folder of gpuloss:
//
//	make shared
//	go build -o build/losses_go examples/languages/losses.go
//	LD_LIBRARY_PATH=build build/losses_go
//
// Each result is compared with a reference in double precision.
// Exit status: 0, 1 if a comparison failed, 2 if this machine lacks something, 3 for other errors.
package main

// The header declares its functions hidden unless GPULOSS_API says otherwise. Go has no way to use the defaults of a desc,
// which are initialisers: functions return them.

/*
#cgo CFLAGS: -I${SRCDIR}/../.. -DGPULOSS_API=extern
#cgo LDFLAGS: -L${SRCDIR}/../../build -lgpuloss
#include "gpuloss.h"

static inline gpuloss_cross_entropy_desc cross_entropy_defaults(void) {
    const gpuloss_cross_entropy_desc desc = GPULOSS_CROSS_ENTROPY_DEFAULTS;
    return desc;
}
static inline gpuloss_kl_div_desc kl_div_defaults(void) {
    const gpuloss_kl_div_desc desc = GPULOSS_KL_DIV_DEFAULTS;
    return desc;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"unsafe"
)

// ---- a wrapper ----

// Error is a call of gpuloss that failed.
type Error struct {
	Message     string
	Environment bool // this machine lacks something
}

func (e *Error) Error() string { return e.Message }

// check converts the status that call returns to an error. The message is that of the calling thread, and between two
// calls of C a goroutine may go on in another thread: it stays in this one.
func check(call func() C.gpuloss_status) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	status := call()
	if status == C.GPULOSS_OK {
		return nil
	}
	return &Error{C.GoString(C.gpuloss_last_error()), C.gpuloss_group_of(status) == C.GPULOSS_GROUP_ENVIRONMENT}
}

func checkLength(name string, length, rows, columns int) error {
	if rows < 0 || columns < 1 || length%columns != 0 || length/columns != rows {
		return fmt.Errorf("%s: needs %d x %d elements (got %d)", name, rows, columns, length)
	}
	return nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// GPU is a context of gpuloss. Close frees it.
type GPU struct {
	context *C.gpuloss_context
}

// Open binds to the first GPU.
func Open() (*GPU, error) {
	desc := C.gpuloss_create_desc{flags: C.GPULOSS_CHECK_POINTERS} // while a program is new
	var context *C.gpuloss_context
	err := check(func() C.gpuloss_status {
		return C.gpuloss_create_versioned(&context, &desc, C.GPULOSS_VERSION, C.GPULOSS_DESC_BYTES)
	})
	if err != nil {
		return nil, err
	}
	return &GPU{context}, nil
}

// Close frees the context. Its arrays are to be freed before.
func (gpu *GPU) Close() { C.gpuloss_destroy(gpu.context) }

// Name is that of the GPU.
func (gpu *GPU) Name() (string, error) {
	var info C.gpuloss_info
	err := check(func() C.gpuloss_status { return C.gpuloss_get_info(gpu.context, &info) })
	return C.GoString(&info.device_name[0]), err
}

type element interface{ float32 | int32 }

// Array is memory of the GPU. Free releases it.
type Array[T element] struct {
	gpu     *GPU
	address unsafe.Pointer
	length  int
}

func (array *Array[T]) bytes() C.size_t {
	var element T
	return C.size_t(array.length) * C.size_t(unsafe.Sizeof(element))
}

// Alloc does not set the elements of the new array.
func Alloc[T element](gpu *GPU, length int) (*Array[T], error) {
	if length < 0 {
		return nil, fmt.Errorf("length: needs 0 elements or more (got %d)", length)
	}
	array := &Array[T]{gpu: gpu, length: length}
	var address unsafe.Pointer
	err := check(func() C.gpuloss_status { return C.gpuloss_alloc(gpu.context, &address, array.bytes()) })
	if err != nil {
		return nil, err
	}
	array.address = address
	return array, nil
}

// Upload copies host to a new array.
func Upload[T element](gpu *GPU, host []T) (*Array[T], error) {
	array, err := Alloc[T](gpu, len(host))
	if err != nil || len(host) == 0 {
		return array, err
	}
	err = check(func() C.gpuloss_status {
		return C.gpuloss_upload(gpu.context, array.address, unsafe.Pointer(&host[0]), array.bytes(), nil)
	})
	if err != nil {
		array.release()
		return nil, err
	}
	return array, nil
}

// Download copies the array from the GPU.
func (array *Array[T]) Download() ([]T, error) {
	host := make([]T, array.length)
	if len(host) == 0 {
		return host, nil
	}
	err := check(func() C.gpuloss_status {
		return C.gpuloss_download(array.gpu.context, unsafe.Pointer(&host[0]), array.address, array.bytes(), nil)
	})
	return host, err
}

// Free releases the memory.
func (array *Array[T]) Free() error {
	address := array.address
	array.address, array.length = nil, 0
	return check(func() C.gpuloss_status { return C.gpuloss_free(array.gpu.context, address) })
}

// release is Free for a defer: an error is printed.
func (array *Array[T]) release() {
	if err := array.Free(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// CrossEntropy computes the mean over the targets, and its gradient.
func (gpu *GPU) CrossEntropy(logits *Array[float32], targets *Array[int32], classes int, loss, grad *Array[float32]) error {
	rows := targets.length
	if err := firstOf(checkLength("logits", logits.length, rows, classes), checkLength("loss", loss.length, 1, 1),
		checkLength("grad", grad.length, rows, classes)); err != nil {
		return err
	}
	desc := C.cross_entropy_defaults()
	desc.logits = logits.address
	desc.dtype = C.GPULOSS_F32
	desc.targets = targets.address
	desc.target_type = C.GPULOSS_I32
	desc.rows = C.int64_t(rows)
	desc.classes = C.int64_t(classes)
	desc.loss = loss.address
	desc.grad_logits = grad.address
	return check(func() C.gpuloss_status { return C.gpuloss_cross_entropy(gpu.context, &desc, nil) })
}

// KLDiv computes KL(teacher || student) of the softmax of each, the mean over rows.
func (gpu *GPU) KLDiv(student, teacher *Array[float32], rows, classes int, loss *Array[float32]) error {
	if err := firstOf(checkLength("student", student.length, rows, classes),
		checkLength("teacher", teacher.length, rows, classes), checkLength("loss", loss.length, 1, 1)); err != nil {
		return err
	}
	desc := C.kl_div_defaults()
	desc.input = student.address
	desc.target = teacher.address
	desc.dtype = C.GPULOSS_F32
	desc.input_kind = C.GPULOSS_LOGITS
	desc.target_kind = C.GPULOSS_LOGITS
	desc.rows = C.int64_t(rows)
	desc.classes = C.int64_t(classes)
	desc.loss = loss.address
	return check(func() C.gpuloss_status { return C.gpuloss_kl_div(gpu.context, &desc, nil) })
}

// ---- the reference ----

const (
	rows    = 32
	classes = 50
)

// someLogits are multiples of 1/32 in [-1, 1), which floats hold exactly.
func someLogits(state uint32) []float32 {
	logits := make([]float32, rows*classes)
	for i := range logits {
		state = state*1664525 + 1013904223
		logits[i] = float32(state>>16%64)/32 - 1
	}
	return logits
}

func logSoftmax(row []float32) []float64 {
	sum := 0.0
	for _, x := range row {
		sum += math.Exp(float64(x))
	}
	logs := make([]float64, len(row))
	for c, x := range row {
		logs[c] = float64(x) - math.Log(sum)
	}
	return logs
}

func rowOf(logits []float32, row int) []float32 { return logits[row*classes : (row+1)*classes] }

// referenceCrossEntropy returns the loss, and the gradient of each logit.
func referenceCrossEntropy(logits []float32, targets []int32) (loss float64, grad []float64) {
	for row, target := range targets {
		logs := logSoftmax(rowOf(logits, row))
		loss -= logs[target] / rows
		for c, log := range logs {
			p := math.Exp(log)
			if c == int(target) {
				p--
			}
			grad = append(grad, p/rows)
		}
	}
	return loss, grad
}

func referenceKLDiv(student, teacher []float32) (loss float64) {
	for row := 0; row < rows; row++ {
		q, t := logSoftmax(rowOf(student, row)), logSoftmax(rowOf(teacher, row))
		for c := range q {
			loss += math.Exp(t[c]) * (t[c] - q[c]) / rows
		}
	}
	return loss
}

// ---- the comparison ----

// The bounds count roundings of floats, to first order. The logits of a row differ by less than 2, and log(classes) is below
// 4.
const (
	rounding = 1.0 / 16777216
	// exp() is within 6 roundings, and its argument within 3 of its size.
	expError = 6 + 3*2
	// An addition a class; and a tree of 6 levels, which multiplies by an exponential (7) in each.
	sumError = expError + classes + 6*7
	// The logarithm is within 2 of its size.
	logSumError = sumError + 2*4
	// The quotient exp / sum.
	probabilityError = expError + sumError + 3
	// log sum less a distance, below 6, is rounded; so is the mean.
	crossEntropyBound = (logSumError + 2*6) * rounding
	// p - 1 and the product with 1 / rows are rounded, and that factor up to 6 times.
	gradientBound = (probabilityError + 8) * rounding / rows
	// |log t - log q| is below 4. It comes from two log sums in three operations. Its product with t is rounded, and added.
	klDivBound = (2*logSumError + 4*(3+probabilityError+1+classes+1)) * rounding
)

// compare prints the largest error, which has to be within the bound.
func compare(name string, gpu *Array[float32], want []float64, bound float64) (bool, error) {
	got, err := gpu.Download()
	if err != nil {
		return false, err
	}
	worst := 0.0
	for i := range want {
		worst = math.Max(worst, math.Abs(float64(got[i])-want[i])) // a NaN stays
	}
	passed, word := worst <= bound, "FAIL"
	if passed {
		word = "pass"
	}
	fmt.Printf("%-14s error %.1e of at most %.1e: %s\n", name, worst, bound, word)
	return passed, nil
}

// run says whether all comparisons passed.
func run() (bool, error) {
	logits, teacher, targets := someLogits(1), someLogits(2), make([]int32, rows)
	for row := range targets {
		targets[row] = int32(row * 7 % classes)
	}

	gpu, err := Open()
	if err != nil {
		return false, err
	}
	defer gpu.Close()
	name, err := gpu.Name()
	if err != nil {
		return false, err
	}
	fmt.Printf("cross-entropy and KL divergence of %d rows and %d classes, from Go, on %s\n", rows, classes, name)
	gpuLogits, err := Upload(gpu, logits)
	if err != nil {
		return false, err
	}
	defer gpuLogits.release()
	gpuTeacher, err := Upload(gpu, teacher)
	if err != nil {
		return false, err
	}
	defer gpuTeacher.release()
	gpuTargets, err := Upload(gpu, targets)
	if err != nil {
		return false, err
	}
	defer gpuTargets.release()
	gpuGrad, err := Alloc[float32](gpu, rows*classes)
	if err != nil {
		return false, err
	}
	defer gpuGrad.release()
	gpuLoss, err := Alloc[float32](gpu, 1)
	if err != nil {
		return false, err
	}
	defer gpuLoss.release()

	if err := gpu.CrossEntropy(gpuLogits, gpuTargets, classes, gpuLoss, gpuGrad); err != nil {
		return false, err
	}
	loss, grad := referenceCrossEntropy(logits, targets)
	lossPassed, err := compare("cross-entropy", gpuLoss, []float64{loss}, crossEntropyBound)
	if err != nil {
		return false, err
	}
	gradPassed, err := compare("its gradient", gpuGrad, grad, gradientBound)
	if err != nil {
		return false, err
	}

	if err := gpu.KLDiv(gpuLogits, gpuTeacher, rows, classes, gpuLoss); err != nil {
		return false, err
	}
	klDivPassed, err := compare("KL divergence", gpuLoss, []float64{referenceKLDiv(logits, teacher)}, klDivBound)
	return lossPassed && gradPassed && klDivPassed, err
}

func main() {
	passed, err := run()
	var failure *Error
	switch {
	case errors.As(err, &failure) && failure.Environment:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	case !passed:
		os.Exit(1)
	}
}
