"""Fine-tunes a causal language model with Hugging Face's `Trainer`, under Heterosis or alone.

    PYTHONPATH=python python examples/finetune_hf.py --model DIR_OR_ID --data FILE.txt --steps 200

Needs torch, transformers and accelerate; with `--lora RANK` also peft.
"""

import argparse
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

import heterosis


class Reports(TrainerCallback):
    """Tells Heterosis how far the training is, and saves when it is asked to."""

    def __init__(self, job: heterosis.Job) -> None:
        self.job = job
        self.leaves = False

    def on_step_end(self, _arguments, state, control, **_named) -> None:
        step, total = state.global_step, state.max_steps
        self.leaves = self.job.should_stop(step) and step < total
        control.should_save |= self.leaves or self.job.should_save()
        control.should_training_stop |= self.leaves

    def on_log(self, _arguments, state, _control, logs, **_named) -> None:
        if "loss" in logs:
            step, total = state.global_step, state.max_steps
            self.job.progress(step=step, total=total, loss=logs["loss"])

    def on_save(self, arguments, state, _control, **_named) -> None:
        step = state.global_step
        self.job.saved(step, Path(arguments.output_dir, f"checkpoint-{step}"))


def tokenised(file: Path, tokenizer, length: int) -> list:
    """The text in rows of equal length; what is left at its end is not used."""
    ids = torch.tensor(tokenizer(file.read_text(encoding="utf-8"), verbose=False)["input_ids"])
    rows = ids[: len(ids) // length * length].view(-1, length)
    return [{"input_ids": row, "labels": row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a directory, or an id of the hub")
    parser.add_argument("--data", required=True, type=Path, help="a text in UTF-8")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--lora", type=int, metavar="RANK", help="instead of all weights")
    parser.add_argument("--output", type=Path, default=Path("finetuned"))
    options = parser.parse_args()

    # Everything that needs no device.
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    data = tokenised(options.data, tokenizer, options.seq)
    if options.lora:
        import peft

    # From here on the devices are ours, and known.
    heterosis.wait_for_devices()
    job = heterosis.job()

    set_seed(1)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    if options.lora:
        lora = peft.LoraConfig(r=options.lora, target_modules="all-linear", task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, lora)
    arguments = TrainingArguments(
        output_dir=str(job.checkpoint_dir or options.output),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        learning_rate=options.lr,
        logging_steps=1,
        save_strategy="no",  # when, `Reports` says
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
    )
    reports = Reports(job)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        data_collator=default_data_collator,
        callbacks=[reports],
    )
    trainer.train(resume_from_checkpoint=str(job.resume_from) if job.resume_from else None)
    if reports.leaves:
        job.leave()
    trainer.save_model(str(options.output))
    tokenizer.save_pretrained(options.output)
    job.progress(done=True)


if __name__ == "__main__":
    main()
