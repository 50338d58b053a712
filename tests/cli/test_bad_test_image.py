"""A test picture that cannot be read is met after training: the model is kept, and the sentence
says how to go on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headtail.cli import main


def test_the_trained_model_is_kept_and_tested_later(tmp_path: Path, capsys: pytest.CaptureFixture):
    data = tmp_path / "zoo"
    run = tmp_path / "run"
    lines = []
    data.mkdir()
    for i in range(24):
        pixels = np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(data / f"{i}.jpg")
        lines.append(f"{i}.jpg {i % 3}\n")
    (data / "train.txt").write_text("".join(lines[:16]))
    (data / "test.txt").write_text("".join(lines[16:]))
    (data / "20.jpg").write_bytes(b"no picture")
    words = [
        "--encoder",
        "resnet20",
        "--epochs",
        "1",
        "--batch",
        "16",
        "--scheme",
        "softmax",
        "--device",
        "cpu",
    ]
    assert main(["train", str(data), "--out", str(run), *words]) == 2
    assert (
        f"The trained model is kept: once that is fixed, `headtail evaluate {run} {data}` tests "
        "it." in capsys.readouterr().err
    )
    out = tmp_path / "best.csv"
    assert (
        main(
            [
                "predict",
                str(run),
                str(data),
                "--skip-bad-images",
                "--device",
                "cpu",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    assert "7 points × 3 labels" in capsys.readouterr().out
