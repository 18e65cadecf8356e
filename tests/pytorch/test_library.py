"""The binding: against gpuloss.h, its errors, its contexts, threads; and what of CUDA can be tested without a GPU."""

import contextlib
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from unittest.mock import patch

import torch
from device import BUILD, DEVICE, INTERPRETER, ROOT, gpuloss
from gpuloss import descs, library
from support import Case, probabilities, random

STRUCTS = {
    "gpuloss_create_desc": descs.CreateDesc,
    "gpuloss_cross_entropy_desc": descs.CrossEntropyDesc,
    "gpuloss_kl_div_desc": descs.KLDivDesc,
    "gpuloss_kl_div_sparse_desc": descs.KLDivSparseDesc,
}
ENUMS = (descs.Reduction, descs.Flags, descs.Kind, descs.Divergence, descs.Residual)
TYPES = {
    "F32": library.DTYPES[torch.float32],
    "F64": library.DTYPES[torch.float64],
    "F16": library.DTYPES[torch.float16],
    "BF16": library.DTYPES[torch.bfloat16],
    "I64": library.INDEX_TYPES[torch.int64],
    "I32": library.INDEX_TYPES[torch.int32],
    "I16": library.INDEX_TYPES[torch.int16],
    "U8": library.INDEX_TYPES[torch.uint8],
}


def numbers_of_python():
    """The numbers of the binding, by the C expression for each."""
    numbers = {
        "GPULOSS_VERSION": library.VERSION,
        "GPULOSS_DESC_BYTES": library.DESC_BYTES,
        "GPULOSS_GROUP_USAGE": 1,
        "GPULOSS_ERROR_OUT_OF_HOST_MEMORY": 300,
        "GPULOSS_ERROR_OUT_OF_DEVICE_MEMORY": 301,
    }
    for name, struct in STRUCTS.items():
        numbers[f"sizeof({name})"] = ctypes.sizeof(struct)
        for field, *_ in struct._fields_:
            numbers[f"offsetof({name}, {field})"] = getattr(struct, field).offset
            numbers[f"sizeof((({name} *)0)->{field})"] = getattr(struct, field).size
    for enumeration in ENUMS:
        numbers.update({f"GPULOSS_{member.name}": int(member) for member in enumeration})
    numbers.update({f"GPULOSS_{name}": number for name, number in TYPES.items()})
    return numbers


class Header(Case):
    def test_descs_and_enums_are_those_of_the_header(self):
        compiler = os.environ.get("CC", "cc")
        if shutil.which(compiler) is None:
            self.skipTest(f"there is no C compiler ({compiler})")
        numbers = numbers_of_python()
        lines = "".join(f'    printf("%lld\\n", (long long)({expression}));\n' for expression in numbers)
        includes = "".join(f"#include {name}\n" for name in ('"gpuloss.h"', "<stddef.h>", "<stdio.h>"))
        source = f"{includes}int main(void) {{\n{lines}    return 0;\n}}\n"
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "numbers")
            subprocess.run(
                [compiler, "-x", "c", "-std=c99", f"-I{ROOT}", "-", "-o", program], input=source.encode(), check=True
            )
            said = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
        self.assertEqual(dict(zip(numbers, map(int, said))), numbers)

    def test_another_version_is_refused(self):
        for constant, value in (("VERSION", library.VERSION + 100), ("DESC_BYTES", library.DESC_BYTES + 8)):
            with patch.object(library, constant, value):
                other = type(library.current())() if DEVICE == "cpu" else gpuloss.Library()
                with self.assertRaisesRegex(ValueError, "gpuloss_create.*INVALID_ARGUMENT"):
                    other.context(torch.device(DEVICE, 0))


class Find(Case):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def test_environment_comes_first(self):
        path = os.path.join(self.folder.name, "lib.so")
        with patch.dict(os.environ, GPULOSS_LIBRARY=path):
            with self.assertRaisesRegex(FileNotFoundError, f"tried {path}\\).*make shared"):
                library.find()
            pathlib.Path(path).touch()
            self.assertEqual(library.find(), path)

    def test_then_beside_the_module_then_in_build(self):
        package = pathlib.Path(self.folder.name, "examples", "pytorch", "gpuloss")
        beside, built = package / "libgpuloss.so", pathlib.Path(self.folder.name, "build", "libgpuloss.so")
        for path in (beside, built):
            path.parent.mkdir(parents=True)
        with patch.object(library, "__file__", str(package / "library.py")), patch.dict(os.environ):
            os.environ.pop("GPULOSS_LIBRARY", None)
            with self.assertRaisesRegex(FileNotFoundError, f"{beside}, {built}"):
                library.find()
            built.touch()
            self.assertEqual(library.find(), str(built))
            beside.touch()
            self.assertEqual(library.find(), str(beside))

    def test_an_older_torch_is_refused(self):
        pathlib.Path(self.folder.name, "torch.py").write_text('__version__ = "2.3.1+cu121"\n')
        path = os.pathsep.join([self.folder.name, os.path.dirname(os.path.dirname(gpuloss.__file__))])
        done = subprocess.run(
            [sys.executable, "-c", "import gpuloss"],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(r"gpuloss needs PyTorch 2.4 or newer, for torch.library.custom_op (got 2.3.1+cu121)", done.stderr)


class Devices(Case):
    def test_cpu_tensors_are_refused(self):
        before = library.use(gpuloss.Library(str(BUILD / "libgpuloss.so")))
        try:
            x, y = torch.randn(2, 3), torch.tensor([0, 1])
            for call in (
                lambda: gpuloss.cross_entropy(x, y),
                lambda: gpuloss.kl_div(x, x, reduction="sum"),
                lambda: gpuloss.divergence(x, x, input_kind="logits", target_kind="logits"),
                lambda: gpuloss.sparse_divergence(x, y[:, None], x[:, :1], value_kind="probabilities", residual="drop"),
                lambda: gpuloss.linear_cross_entropy(x, x, y),
                lambda: torch.ops.gpuloss.cross_entropy_backward(
                    torch.ones(()), x, y, None, None, x[:, 0], 3, -100, 0.0, 0.0, 0.0, 1.0, True, False
                ),
            ):
                with self.assertRaisesRegex(NotImplementedError, r"^\w+: must be a cuda tensor \(got one on cpu\)"):
                    call()
        finally:
            library.use(before)

    def test_tensors_of_two_devices_are_refused(self):
        tensors = [types.SimpleNamespace(device=torch.device("cuda", number)) for number in (0, 1)]
        checks = gpuloss.Library.check_devices
        with self.assertRaisesRegex(RuntimeError, "weight: must be on the device of input, cuda:0 .*cuda:1"):
            checks(types.SimpleNamespace(accepts="cuda"), {"input": tensors[0], "bias": None, "weight": tensors[1]})

    def test_contexts_are_made_once_for_each_device(self):
        made = []
        subject = gpuloss.Library(str(BUILD / "libgpuloss.so"))
        subject._create = lambda ordinal: made.append(ordinal) or ctypes.c_void_p(100 + ordinal)
        barrier, found = threading.Barrier(8), []

        def request(number):
            barrier.wait()
            found.append((number % 2, subject.context(torch.device("cuda", number % 2)).value))

        threads = [threading.Thread(target=request, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(made), [0, 1])
        self.assertEqual(sorted(found), [(0, 100)] * 4 + [(1, 101)] * 4)

    def test_the_context_is_the_primary_one_whatever_is_current(self):
        """Another CUcontext is current when the first call comes, and is gone at the second."""
        if DEVICE == "cuda":
            self.skipTest("needs a driver that PyTorch does not use: the interpreter")
        driver, other = ctypes.CDLL(str(INTERPRETER)), ctypes.c_void_p()
        subject = type(library.current())()
        before = library.use(subject)
        try:
            self.assertEqual(driver.cuInit(0), 0)
            self.assertEqual(driver.cuCtxCreate_v2(ctypes.byref(other), 0, 0), 0)
            first = gpuloss.cross_entropy(torch.ones(2, 3), torch.tensor([0, 1]))
            self.assertEqual(driver.cuCtxDestroy_v2(other), 0)
            self.assertTrue(torch.equal(gpuloss.cross_entropy(torch.ones(2, 3), torch.tensor([0, 1])), first))
        finally:
            library.use(before)
            subject.close()

    def test_a_driver_that_is_not_there(self):
        subject = gpuloss.Library(str(BUILD / "libgpuloss.so"), driver_path="/nowhere/libcuda.so.1")
        with self.assertRaisesRegex(RuntimeError, "/nowhere/libcuda.so.1.*GPULOSS_ERROR_NO_DRIVER"):
            subject.context(torch.device("cuda", 0))

    def test_errors_by_status(self):
        subject = gpuloss.Library(str(BUILD / "libgpuloss.so"))
        for status, kind in (
            (100, ValueError),
            (104, ValueError),
            (200, RuntimeError),
            (300, MemoryError),
            (301, torch.cuda.OutOfMemoryError),
            (400, RuntimeError),
        ):
            self.assertIs(type(subject._error(status)), kind)

    def test_close_frees_the_contexts(self):
        if DEVICE == "cuda":
            self.skipTest("counts contexts of the interpreter")
        subject = type(library.current())()
        before = library.use(subject)
        try:
            for _ in range(3):
                gpuloss.cross_entropy(random(2, 3), torch.tensor([0, 1]))
                self.assertEqual(len(subject._contexts), 1)
                subject.close()
                self.assertEqual(len(subject._contexts), 0)
        finally:
            library.use(before)


class Threads(Case):
    def test_threads_at_once(self):
        """Each thread has its own numbers, and finds the results that one thread alone finds."""
        count, repeats = 4, 12

        def work(number):
            input = inputs[number].detach().requires_grad_()
            loss = gpuloss.cross_entropy(input, targets[number], label_smoothing=0.1)
            return torch.autograd.grad(loss + gpuloss.kl_div(input, likely[number], reduction="sum"), input)[0].cpu()

        inputs = [random(3, 4 + number) for number in range(count)]
        targets = [torch.tensor([0, 1, 3], device=DEVICE) for _ in range(count)]
        likely = [probabilities(3, 4 + number) for number in range(count)]
        alone = [work(number) for number in range(count)]
        barrier, wrong = threading.Barrier(count), []

        def repeat(number):
            try:
                stream = torch.cuda.stream(torch.cuda.Stream()) if DEVICE == "cuda" else contextlib.nullcontext()
                barrier.wait()
                with stream:
                    for _ in range(repeats):
                        if not torch.equal(work(number), alone[number]):
                            wrong.append(number)
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=repeat, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_errors_are_those_of_the_thread(self):
        barrier, said = threading.Barrier(2), {}

        def fail(option):
            barrier.wait()
            for _ in range(20):
                try:
                    gpuloss.cross_entropy(random(2, 3), torch.tensor([0, 1], device=DEVICE), **{option: -1.0})
                except ValueError as error:
                    said.setdefault(option, set()).add(str(error).split(": ")[1])

        threads = [threading.Thread(target=fail, args=(option,)) for option in ("softcap", "z_loss")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(said, {"softcap": {"softcap"}, "z_loss": {"lse_square_scale"}})


class Recording(gpuloss.Library):
    """Takes CPU tensors as a Library takes CUDA tensors, and records calls instead of making them."""

    accepts = "cpu"

    def __init__(self):
        super().__init__(str(BUILD / "libgpuloss.so"), str(INTERPRETER))
        self.recorded = []

    def run(self, function, context, desc, stream):
        self.recorded.append((desc, stream))


class Calls(Case):
    """The library gets from a call on CUDA tensors: addresses, the stream, a workspace."""

    def call(self, is_capturing):
        recording = Recording()
        before = library.use(recording)
        input, target = torch.randn(2, 3), torch.tensor([0, 1])
        try:
            with (
                patch.object(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=77)),
                patch.object(torch.cuda, "device", lambda device: contextlib.nullcontext()),
                patch.object(torch.cuda, "is_current_stream_capturing", lambda: is_capturing),
            ):
                gpuloss.cross_entropy(input, target)
        finally:
            library.use(before)
            recording.close()
        ((desc, stream),) = recording.recorded
        self.assertEqual((desc.logits, desc.targets, stream), (input.data_ptr(), target.data_ptr(), 77))
        return desc

    def test_arrays_and_stream(self):
        self.assertEqual(self.call(False).workspace, None)

    def test_a_captured_call_has_a_workspace(self):
        desc = self.call(True)
        self.assertGreater(desc.workspace_bytes, 0)
        self.assertEqual(desc.workspace % 16, 0)


if __name__ == "__main__":
    unittest.main()
