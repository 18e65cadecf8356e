"""The training example, a few steps of it: both losses give the same curve."""

import os
import subprocess
import sys
import unittest

import torch
from device import DEVICE, ROOT, gpuloss
from support import Case


class Train(Case):
    def test_the_curves_agree(self):
        import train

        text = torch.frombuffer(bytearray(b"the quick brown fox jumps over the lazy dog. " * 9), dtype=torch.uint8).to(
            DEVICE
        )
        settings = {"steps": 3, "batch": 1, "width": 16, "layers": 1}
        losses = train.train(train.loss_of_torch, text, DEVICE, **settings)
        self.assertLess(losses[-1].item(), losses[0].item())
        for ours in (train.loss_of_gpuloss, gpuloss.linear_cross_entropy):
            curve = train.train(ours, text, DEVICE, **settings)
            # Of 256 classes: 256 additions, 8 levels of 8 roundings, and less than 192 others (see bounds.py).
            self.assertLess((curve - losses)[0].abs().item(), 512 * 2.0**-24)
            self.assertLess(curve[-1].item(), curve[0].item())

    def test_the_default_text_is_there_and_short_texts_are_refused(self):
        import train

        self.assertGreater(train.text_of([ROOT / "README.md"], "cpu").numel(), train.CONTEXT)
        with self.assertRaisesRegex(SystemExit, "TEXT: needs more than 128 bytes .got 0"):
            train.text_of([os.devnull], "cpu")

    def test_without_cuda_it_says_so(self):
        done = subprocess.run(
            [sys.executable, os.path.join(os.path.dirname(os.path.dirname(gpuloss.__file__)), "train.py")],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("train.py needs a CUDA GPU", done.stderr)


if __name__ == "__main__":
    unittest.main()
