"""SemIf's own functions in this process, on the weights that the actor serves: the baseline."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product, takewhile
from pathlib import Path
from typing import Any, TypeVar

from actor.cli.bench.workload import Row

__all__ = ["SETTLE_S", "SemIf", "load_tokenizer"]

SETTLE_S = 0.2
"""After a side has run: the threads of its last matrix product spin a while before they sleep, and
two sides that spin on the same cores slow each other down many times.
"""
Result = TypeVar("Result")

PRODUCT_ROWS = (512, 2048, 4096)
PRODUCT_RUNS = 10


class SemIf:
    """A model as transformers loads it, asked on one thread of its own.

    One thread, because torch keeps a team of workers for each thread that calls it.
    """

    def __init__(self, folder: Path, *, device: str, dtype: str, tokens_max: int) -> None:
        self._folder = folder
        self._device = device
        self._dtype = dtype
        self._tokens_max = tokens_max
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="semif")
        self._model: Any = None
        self._tokenizer: Any = None

    async def load(self, warm_up: Row) -> None:
        """Load, and score a row: the first pass of a process is slower than the others."""
        await self._run(self._load)
        await self.score([warm_up])

    async def score(self, rows: Sequence[Row]) -> float:
        """Give the seconds of SemIf's ``score`` over the rows, in a loop."""
        from semif_phase1 import direct  # noqa: PLC0415

        def loop() -> None:
            for row in rows:
                direct.score(self._model, self._tokenizer, row, {}, self._tokens_max)

        return await self._timed(loop)

    async def score_shared(self, rows: Sequence[Row]) -> float:
        """Give the seconds of SemIf's ``score_shared`` over the rows."""
        from semif_phase1 import shared  # noqa: PLC0415

        def call() -> None:
            shared.score_shared(self._model, self._tokenizer, list(rows), {}, self._tokens_max)

        return await self._timed(call)

    async def best_product_flops(self) -> float:
        """Give the FLOP/s of the fastest product of the model's matrices with many tokens."""
        return await self._run(self._best_product_flops)

    def flop_per_token(self) -> int:
        """Give the FLOPs of a token: two for each parameter outside the embeddings.

        Attention between tokens is left out, and so is the output layer, of which a decision needs
        the rows of a few letters.
        """
        outside = (self._model.get_input_embeddings(), self._model.get_output_embeddings())
        left_out = {id(module.weight) for module in outside}
        counted: list[int] = [p.numel() for p in self._model.parameters() if id(p) not in left_out]
        return 2 * sum(counted)

    def unique_tokens(self, rows: Sequence[Row]) -> int:
        """Give the tokens of the rows' prompts behind what all of them begin with."""
        from semif_phase1 import direct  # noqa: PLC0415

        prompts: list[list[int]] = [
            direct.encode_prompt(self._tokenizer, row, self._tokens_max)[0] for row in rows
        ]
        return tokens_behind_common(prompts)

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(wait=False)

    def _load(self) -> None:
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415

        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        # SemIf passes it; transformers is capped below its removal.
        warnings.filterwarnings("ignore", "`past_key_values` is deprecated", FutureWarning)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            self._folder, dtype=getattr(torch, self._dtype), local_files_only=True
        )
        self._model = model.to(self._device).eval()
        self._tokenizer = load_tokenizer(self._folder)

    def _best_product_flops(self) -> float:
        import torch  # noqa: PLC0415

        weights = [p.detach() for p in self._model.base_model.layers.parameters() if p.dim() == 2]  # noqa: PLR2004
        shapes = {tuple(weight.shape): weight for weight in weights}
        best = 0.0
        with torch.inference_mode():
            for rows, weight in product(PRODUCT_ROWS, shapes.values()):
                tokens = torch.randn(rows, weight.shape[1], device=weight.device).to(weight.dtype)
                flop = 2 * rows * weight.numel()
                for _ in range(PRODUCT_RUNS):
                    seconds = self._seconds_of(lambda: tokens @ weight.T)  # noqa: B023 - called here
                    best = max(best, flop / seconds)
        return best

    def _seconds_of(self, call: Callable[[], object]) -> float:
        import torch  # noqa: PLC0415

        started = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - started

    async def _timed(self, call: Callable[[], object]) -> float:
        seconds = await self._run(lambda: self._seconds_of(call))
        await asyncio.sleep(SETTLE_S)
        return seconds

    async def _run(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def tokens_behind_common(prompts: Sequence[list[int]]) -> int:
    """Give the tokens behind what all prompts begin with, which is computed once for ever."""
    first, last = min(prompts), max(prompts)  # what these two share, all share
    pairs = zip(first, last, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return sum(len(prompt) - common for prompt in prompts)


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a model's directory."""
    import transformers  # noqa: PLC0415

    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
