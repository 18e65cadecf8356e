"""The training example, a few steps of it: the losses give the same curve."""

import itertools
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import torch
from device import DEVICE, gpuloss
from support import Case

PROGRAM = os.path.join(os.path.dirname(os.path.dirname(gpuloss.__file__)), "train.py")


class Train(Case):
    def test_the_curves_agree(self):
        import train

        text = torch.frombuffer(bytearray(b"the quick brown fox jumps over the lazy dog. " * 9), dtype=torch.uint8).to(
            DEVICE
        )

        def curve(loss_of):
            steps = train.train(loss_of, text, 256, DEVICE, batch=1, width=16, layers=1)
            return torch.stack(list(itertools.islice(steps, 3))).double()

        losses = curve(train.loss_of_torch)
        self.assertLess(losses[-1].item(), losses[0].item())
        for ours in (train.loss_of_gpuloss, gpuloss.linear_cross_entropy, train.loss_in_double):
            other = curve(ours)
            # 256 classes have 256 additions, 8 levels of 8 roundings, and less than 192 others (see bounds.py).
            self.assertLess((other - losses)[0].abs().item(), 512 * 2.0**-24)
            self.assertLess(other[-1].item(), other[0].item())

    def test_words(self):
        import train

        with tempfile.TemporaryDirectory() as folder:
            first, second = (pathlib.Path(folder, name) for name in ("first", "second"))
            first.write_text("a rose is\n  a rose (is) " * 20)
            second.write_text("a rose")
            text, classes = train.words_of([first, second], 5, "cpu")
            words, _ = train.words_of([first, second], 100, "cpu")
        self.assertEqual(classes, 5)
        self.assertEqual(len(text), len(words))
        self.assertEqual(sorted(set(text.tolist())), [0, 1, 2, 3, 4])
        self.assertEqual(text[-1].item(), 1)  # " rose", which is the most frequent
        self.assertTrue(torch.equal(text, torch.where(words < 5, words, 0)))

    def test_short_texts_are_refused(self):
        import train

        with self.assertRaisesRegex(SystemExit, "TEXT: needs more than 128 words .got 0"):
            train.words_of([os.devnull], 100, "cpu")

    def test_drawing(self):
        import train

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "curves.svg")
            train.draw(path, *(torch.linspace(3 + far, 1, 20).double() for far in (0, 0.5, 1e-4)))
            drawing = xml.etree.ElementTree.parse(path).getroot()
        lines = [
            [tuple(map(float, point.split(","))) for point in line.get("points").split()]
            for line in drawing.iter("{http://www.w3.org/2000/svg}polyline")
        ]
        self.assertEqual([len(line) for line in lines], [20] * 4)
        bottoms = [train.MARGIN + train.PANEL_HEIGHT, 2 * (train.MARGIN + train.PANEL_HEIGHT)]
        self.assertEqual([line[-1][1] for line in lines], [bottoms[0]] * 2 + [bottoms[1]] * 2)
        theirs, mine, far, exact = (line[0] for line in lines)
        self.assertEqual((mine[1], far[1]), (train.MARGIN, bottoms[1] - train.PANEL_HEIGHT))
        # The axes go from 1 to 3.5, and from 1e-7 to 0.5.
        self.assertAlmostEqual(theirs[1], train.MARGIN + 0.5 / 2.5 * train.PANEL_HEIGHT, delta=0.1)
        share = (math.log10(0.5) + 4) / (math.log10(0.5) + 7)
        self.assertAlmostEqual(exact[1], far[1] + share * train.PANEL_HEIGHT, delta=0.1)
        texts = [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
        for text in ("3.50", "1.00", "1e-07", "5e-01", "torch", "gpuloss", "torch in double", "20 steps"):
            self.assertIn(text, texts)

    def run_program(self, *arguments):
        return subprocess.run(
            [sys.executable, PROGRAM, *arguments],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
        )

    def test_without_cuda_it_says_so(self):
        done = self.run_program()
        self.assertEqual(done.returncode, 2)
        self.assertIn("train.py needs a CUDA GPU", done.stderr)

    def test_arguments_are_checked(self):
        for arguments, message in (
            (["--steps", "10"], "--steps: must be at least 11 (got 10)"),
            (["--classes", "1"], "--classes: must be at least 2 (got 1)"),
            (["--width", "6"], "--width: must be a multiple of 4, the number of heads (got 6)"),
            (["--batch", "x"], "--batch: invalid number value: 'x'"),
        ):
            done = self.run_program(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()
