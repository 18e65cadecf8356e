"""Only a GPU shows these: graphs, streams, waits of the host, memory, several devices."""

import unittest

import torch
from device import DEVICE, gpuloss
from support import Case, probabilities, random

MIB = 1 << 20


@unittest.skipUnless(DEVICE == "cuda", "torch has no CUDA GPU")
class Cuda(Case):
    def setUp(self):
        super().setUp()
        self.input = random(64, 512, dtype=torch.float32).requires_grad_()
        self.target = torch.randint(0, 512, (64,), device=DEVICE)
        self.likely = probabilities(64, 512, dtype=torch.float32)
        self.weight = random(512, 512, dtype=torch.float32, spread=0.1).requires_grad_()

    def step(self):
        """Every function, forward and backward."""
        losses = (
            gpuloss.cross_entropy(self.input, self.target, label_smoothing=0.1),
            gpuloss.kl_div(self.input, self.likely, reduction="batchmean"),
            gpuloss.divergence(self.input, self.likely, input_kind="logits", target_kind="probabilities"),
            gpuloss.linear_cross_entropy(self.input, self.weight, self.target, chunk_bytes=20 * 2048),
        )
        loss = torch.stack(losses).sum()
        return (loss.detach(), *torch.autograd.grad(loss, (self.input, self.weight)))

    def test_graph(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = self.step()
        for _ in range(3):
            with torch.no_grad():
                self.input.copy_(random(64, 512, dtype=torch.float32))
            graph.replay()
            for got, want in zip(captured, self.step()):
                self.assertTrue(torch.equal(got, want))

    def test_the_host_does_not_wait(self):
        self.step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            self.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def test_work_is_on_the_current_stream(self):
        want = self.step()
        given = self.input.detach().clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.no_grad():
            self.input.zero_()
            torch.cuda._sleep(50_000_000)
            self.input.copy_(given)
            with torch.enable_grad():
                got = self.step()
        torch.cuda.current_stream().wait_stream(stream)
        for mine, theirs in zip(got, want):
            self.assertTrue(torch.equal(mine, theirs))

    def test_memory_of_linear_cross_entropy(self):
        rows, features, classes, chunk_bytes = 4096, 512, 32768, 8 * MIB
        hidden = random(rows, features, dtype=torch.bfloat16).requires_grad_()
        weight = random(classes, features, dtype=torch.bfloat16).requires_grad_()
        targets = torch.randint(0, classes, (rows,), device=DEVICE)

        def loss():
            return gpuloss.linear_cross_entropy(hidden, weight, targets, chunk_bytes=chunk_bytes)

        loss().backward()
        hidden.grad = weight.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = loss()
        result.backward()
        gradients = 2 * (hidden.numel() + weight.numel())
        # The allocator rounds up; a MiB for the losses of chunks and the divisor.
        self.assertLess(torch.cuda.max_memory_allocated() - before, gradients + chunk_bytes + MIB)
        self.assertTrue(result.isfinite())

    def test_each_device(self):
        if torch.cuda.device_count() < 2:
            self.skipTest("there is one GPU")
        losses = [
            gpuloss.cross_entropy(self.input.to(device), self.target.to(device)) for device in ("cuda:0", "cuda:1")
        ]
        self.assertEqual(losses[1].device, torch.device("cuda", 1))
        self.assertTrue(torch.equal(losses[0], losses[1].to("cuda:0")))
        with self.assertRaisesRegex(RuntimeError, "target: must be on the device of input"):
            gpuloss.cross_entropy(self.input.to("cuda:1"), self.target)


if __name__ == "__main__":
    unittest.main()
