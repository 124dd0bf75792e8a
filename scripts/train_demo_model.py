"""Train the bundled demo model, its prediction head and its draft model, or measure them.

    scripts/train_demo_model.py                    train all, one after the other
    scripts/train_demo_model.py --only head        train the head of the existing model
    scripts/train_demo_model.py --evaluate         the exam of mlxgen/demo/model

Owns the command line and the order of the work. The corpus, the tokenizer,
the network, the training loop and the exam are in the folder demo_model next to it.
"""

import argparse
import ctypes.util
import os
import sys
from functools import partial
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "mlxgen" / "demo"


def main() -> int:
    options = _options()
    # Use OpenBLAS if it is installed: the BLAS of MLX's wheel for Linux is some 25 times slower
    library = ctypes.util.find_library("openblas") if sys.platform == "linux" else None
    if library and "LD_PRELOAD" not in os.environ:
        environment = os.environ | {"LD_PRELOAD": library}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    if options.evaluate:
        from demo_model import exam

        folder = options.model or TARGET
        return exam.run(folder, options.prompts, Console(), show_wrong=options.show_wrong)
    _train(options)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2000, help="steps of the main model")
    parser.add_argument("--draft-steps", type=int, default=1200, help="steps of the draft model")
    parser.add_argument("--head-steps", type=int, default=1200, help="steps of the prediction head")
    parser.add_argument(
        "--only", choices=("model", "draft", "head"), help="what to train (default: all)"
    )
    parser.add_argument("--output", type=Path, help="where the models go (default: mlxgen/demo)")
    parser.add_argument("--evaluate", action="store_true", help="measure instead of training")
    parser.add_argument("--model", type=Path, help="the folder to measure, with model/ and draft/")
    parser.add_argument("--prompts", type=int, default=100, help="prompts for each task")
    parser.add_argument("--show-wrong", action="store_true", help="print some wrong answers")
    return parser.parse_args()


def _train(options: argparse.Namespace) -> None:
    from demo_model import corpus, head, network, package, train
    from tokenizers import Tokenizer

    console = Console(stderr=True)
    trained = package.train_tokenizer(corpus.of_all_tasks(options.seed, 40_000))
    words = Tokenizer.from_str(trained.to_str())
    output = options.output or TARGET
    plans = {
        "model": train.Plan("main", options.seed, options.steps, 300, 2048),
        "draft": train.Plan("draft", options.seed, options.draft_steps, 150, 2048),
        "head": train.Plan("head", options.seed, options.head_steps, 60, 2048, mix=corpus.DRAFTED),
    }
    for name, plan in plans.items():
        if options.only not in (None, name):
            continue
        if name == "head":
            loss = partial(head.loss, package.model(output / "model"))
            weights = train.train(plan, head.new_head(plan.seed), loss, words, console)
            package.save_head(weights, output / "model")
        else:
            fresh = network.new_model(plan.name, plan.seed)
            weights = train.train(plan, fresh, network.loss, words, console)
            package.save(plan.name, weights, trained, output / name)
    package.save_schemas(output / "schemas.json")


if __name__ == "__main__":
    sys.exit(main())
