r"""Beyond one card: the same token weights inside TRL's GRPOTrainer, on its distributed engines.

    python examples/trl_grail.py --model Qwen/Qwen3-0.6B --dataset gsm8k --credit grail
    accelerate launch --num_processes 8 examples/trl_grail.py --model ... --dataset FILE.jsonl

    advantages A (B,)  ->  A[:, None] * w (B, T)      w from grail.py, oar.py or delta.py

TRL's loss accepts one advantage per token as well as one per completion. So we override one method.
Accumulation, inner iterations, --loss_type and all defaults stay TRL's. It costs another forward of
the batch and a backward to the embeddings (OAR-G: 5 and 4; DelTA: 1 and none). Tested with TRL
0.29.0, 1.0.0 and 1.16.0. For several cards and vLLM, see examples/README.md.
What we left out, all refused: images, tools, FSDP 1, OAR-G under FSDP, Liger's loss.
"""
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
try:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import HfArgumentParser
    from trl import GRPOConfig, GRPOTrainer
except ImportError as missing:
    print(f"error: {missing}; beside requirements.txt: pip install trl peft", file=sys.stderr)
    sys.exit(2)
import delta
import grail
import models
import oar
import problems
import saliency
import verify
from engine.errors import run_cli
from logprobs import forward_pass
from rollout import Rollouts, answers, opens_a_thought


def answer_weights(forward, credit):
    """GRAIL's or OAR-G's weights (b, T) of a micro-batch, and (b,) bool: rows without a signal,
    whose weights are all 1.

    If no row has an answer, it still runs the passes, for a first token: in ZeRO-3 all processes
    must do the same passes.
    """
    mask, A = forward.completion_mask, forward.advantages  # (b, T), (b,)
    spans, signs = saliency.answer_spans(forward), torch.tensor(forward.signs)  # (b, 4), (b,)
    asked = signs < 0 if credit == "grail" else signs != 0                      # (b,)
    found = spans[:, 0] > 1                                                     # (b,)
    wanted = spans.where((asked & found)[:, None], -1)                          # (b, 4)
    if (wanted < 0).all():
        wanted[0] = torch.tensor([0, 0, 1, 1])
    spans = spans.to(A.device)
    if credit == "grail":
        s = saliency.gradient_activation(forward, wanted)                       # (b, T)
        return grail.grail_credit(s, mask, spans, A), (asked & ~found).to(A.device)
    s = saliency.input_gradient(forward, wanted)                                # (b, T)
    return oar.oar_credit(s, saliency.before_answer(spans, mask.shape[1]), mask)


class CreditGRPOTrainer(GRPOTrainer):
    """GRPOTrainer with credit "grail", "oar-g", "delta" or "none" (GRPOTrainer to the bit).

    Logs credit/mean, the mean weight of a token, and credit/fallback, the share of completions
    without a signal. Both leave out completions without an advantage, like grpo.py's weight_mean.
    Raises ValueError where weights would be ignored or wrong.
    """

    def __init__(self, *args, credit="grail", **kwargs):
        super().__init__(*args, **kwargs)
        self.credit = credit
        fsdp = self.is_fsdp_enabled
        if credit not in ("none", "delta", "grail", "oar-g")[:3 if fsdp else 4]:
            raise ValueError(f"--credit {credit}: use grail, delta, none or, without FSDP, oar-g.")
        if credit != "none" and (self.args.use_liger_kernel
                                 or fsdp and not self.accelerator.is_fsdp2):
            raise ValueError(f"--credit {credit}: use neither Liger's kernels nor FSDP 1 with it.")
        if credit == "oar-g" and self.accelerator.device.type == "cuda" and not self.args.bf16:
            raise ValueError("--credit oar-g: its passes on a card are in bf16; add --bf16 true.")

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        if self.credit != "none" and self.model.training:
            if "tool_mask" in batch or "pixel_values" in batch:
                raise ValueError(f"--credit {self.credit}: it works with neither tools nor images.")
            batch["advantages"] = self.weights(batch) * batch["advantages"][:, None]  # (B, T)
        return batch

    def weights(self, batch):
        """Weights (B, T) fp32 of a sampled and rewarded batch. Changes no parameter's .grad."""
        ids, mask = batch["completion_ids"], batch["completion_mask"].bool()     # (B, T) each
        A, (B, T), accelerator = batch["advantages"], ids.shape, self.accelerator  # (B,)
        w, logprobs = torch.ones(2, B, T, device=A.device)                       # (B, T) each
        fell_back, hidden = torch.zeros_like(A, dtype=torch.bool), []            # (B,), B x (T, H)
        texts = [self.processing_class.decode(row[on], skip_special_tokens=True,
                                              clean_up_tokenization_spaces=False)
                 for row, on in zip(ids, mask)]
        rollouts = Rollouts(batch["prompt_ids"], batch["prompt_mask"].bool(), ids,
                            mask.sum(1).clamp(min=1), None, None, texts)
        texts = answers(rollouts, self.processing_class)
        model = accelerator.unwrap_model(self.model)
        base = getattr(model, "get_base_model", lambda: model)()  # under PEFT: with the adapters

        # GRAIL and OAR-G need no log-probabilities: the LM head runs for the answer's loss alone.
        # Under FSDP 2 it may run only once: accelerate (from 1.14 on) groups it with the last norm,
        # and the backward of a second call frees the group before the norm's own backward.
        known = None if self.credit == "delta" else logprobs

        def inside(rows):
            with accelerator.autocast(), torch.set_grad_enabled(self.credit != "delta"):
                forward = forward_pass(
                    base, rollouts, rows, self.temperature, known, rewards=None,
                    advantages=A[rows], tokenizer=self.processing_class,
                    texts=[texts[i] for i in rows.tolist()])
            t = forward.logprobs.shape[1]
            if self.credit == "delta":
                logprobs[rows, :t] = forward.logprobs
                hidden.extend(torch.nn.functional.pad(forward.hidden, (0, 0, 0, T - t)))
            else:
                w[rows, :t], fell_back[rows] = answer_weights(forward, self.credit)
        # Under PEFT the embedding layer is frozen, so its output would get no gradient.
        hook = base.get_input_embeddings().register_forward_hook(lambda *x: x[2].requires_grad_())
        original, model.forward = model.forward, inside
        try:  # use the model's own call: FSDP and ZeRO-3 gather its weights only inside it
            for rows in torch.arange(B, device=A.device).split(self._train_batch_size):
                self.model(rows)
        finally:
            model.forward = original
            hook.remove()
        if self.credit == "delta":  # over all processes; hidden states stay where they are
            centroid, inner = delta.head_row(hidden, logprobs, mask)
            mine = slice(accelerator.process_index * B, (accelerator.process_index + 1) * B)
            gather, level = accelerator.gather, accelerator.pad_across_processes
            w, fell_back[:] = delta.delta_weights(
                lambda w: accelerator.reduce(centroid(w[mine, :T]), "sum"),
                lambda d: gather(level(inner(d), 1)), gather(A),
                gather(level(mask.int(), 1)).bool())
            w = w[mine, :T]
        on = mask & (A != 0)[:, None]                                            # (B, T)
        sums = [(w * on).sum(), on.sum(), fell_back[A != 0].sum(), (A != 0).sum()]
        n = accelerator.reduce(torch.stack(sums), "sum").tolist()
        self._metrics["train"]["credit/mean"].append(n[0] / n[1] if n[1] else 1.0)
        self._metrics["train"]["credit/fallback"].append(n[2] / max(1, n[3]))
        return w


def right(completions, answer, prompts=(), problem=None, **_):
    """The reward: 1 if the completion's last box is right and not inside a thought that the prompt
    opened. `problem` is optional: it only tells whether the answer is a percentage."""
    texts = ["" if opens_a_thought(prompt) and "</think>" not in text else text
             for prompt, text in zip(prompts or [""] * len(completions), completions)]
    triples = list(zip(texts, answer, problem or [None] * len(texts)))
    return list(map(float, verify.verify_all(triples, strict=True)))


def steps_of(checkpoint):
    """The optimizer steps that a checkpoint of TRL's trainer did. Raises BadInput if it is none."""
    try:
        return json.loads((Path(checkpoint) / "trainer_state.json").read_text())["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        raise problems.BadInput(f"--resume_from_checkpoint {checkpoint}: no checkpoint of a trainer"
                                "; name one, as OUTPUT_DIR/checkpoint-500.") from None


def leave(accelerator):
    """End all processes together, a moment after the last thing they sent to each other.

    On a CPU, a thread of PyTorch frees what was sent, and needs Python for it. A process whose
    Python already ends is aborted by that thread (pytorch/pytorch#190489)."""
    accelerator.wait_for_everyone()
    time.sleep(0.1)
    accelerator.end_training()


def main(argv=None):
    parser = HfArgumentParser(GRPOConfig, description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="tiny", help="hub id or folder; tiny: the embedded one")
    parser.add_argument("--dataset", default="arithmetic", help="a name, its hub id or FILE.jsonl")
    parser.add_argument("--credit", default="grail", choices=["grail", "oar-g", "delta", "none"])
    parser.add_argument("--lora_r", type=int, default=0, help="LoRA on all linear layers; 0: none")
    try:
        args, script = parser.parse_args_into_dataclasses(argv)
        resumed = args.resume_from_checkpoint
        before = steps_of(resumed) if resumed else 0
        names = {source.hub: name for name, source in problems.HUB.items()}
        model = str(problems.HERE / "data/tiny") if script.model == "tiny" else script.model
        models.check_folder(script.model, Path(model))
        tokenizer = models.load_tokenizer(script.model, model)
        bos = tokenizer.bos_token if tokenizer("a").input_ids[0] == tokenizer.bos_token_id else ""
        data = [{"prompt": problems.build_prompt(tokenizer, row["problem"]).removeprefix(bos),
                 "answer": row["answer"], "problem": row["problem"]}
                for row in problems.load_problems(names.get(script.dataset, script.dataset))]
        lora = LoraConfig(r=script.lora_r, target_modules="all-linear") if script.lora_r else None
        trainer = CreditGRPOTrainer(model, right, args, Dataset.from_list(data), peft_config=lora,
                                    processing_class=tokenizer, credit=script.credit)
    except (ValueError, OSError) as mistake:  # TRL's checks of its settings, and ours
        reason = str(mistake).strip().partition("\n")[0].replace("--data ", "--dataset ")
        raise problems.BadInput(reason) from None
    try:
        done = trainer.train(resume_from_checkpoint=resumed)
    except ValueError as mistake:
        if "valid checkpoint" not in str(mistake):  # the other ones are no mistake of the user's
            raise
        raise problems.BadInput(f"--resume_from_checkpoint {resumed}: has no weights.") from None
    if args.save_strategy != "no":
        trainer.save_model(args.output_dir)
    steps = done.global_step - before
    trainer.accelerator.print(f"{done.metrics['train_runtime'] / steps:.2f} s a step" if steps else
                              f"{resumed} has done all steps, so none was left to train.")
    leave(trainer.accelerator)


if __name__ == "__main__":
    run_cli(main)
