"""Writes data.json, bpe.json and chats.parquet: training data, and its tokens and answers as
`transformers` has them.

    pip install transformers==5.24.0 tokenizers jinja2 pyarrow && python data.py

`bpe.json` is a byte-level BPE of 512 tokens, trained here on the sentences below. Templates are
written for this file, in the ways that published ones are: with namespaces, loops over slices,
methods of strings, system prompts of their own and refusals. Each marks answers by
`{% generation %}`, from which `transformers` takes its own mask; the white space behind the token
that ends a turn lies outside of it.
"""

import json
import pathlib

import pyarrow
import pyarrow.parquet
import tokenizers
import transformers

HERE = pathlib.Path(__file__).parent
TEXTS = [
    "The capital of France is Paris, and that of Italy is Rome.",
    "How many legs has a spider? A spider has eight legs, 8 of them.",
    "Write a job file that trains on two devices, then one that waits.\n\nname: two\n",
    "ünï çødé ✓ 語 and   spaces,\ttabs and\n\n\nlines",
    "Below is an instruction that describes a task. Write a response.\n\n### Response:",
] * 20
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]"]

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>' + '\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INSTRUCT = """{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set turns = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in turns %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' }}
        {%- if loop.first and system %}{{ system + '\\n\\n' }}{% endif %}
        {{- message.content.strip() + ' [/INST]' }}
    {%- else %}
        {%- generation %}
        {{- ' ' + message.content.strip() + eos_token }}
        {%- endgeneration %}
    {%- endif %}
{%- endfor %}
"""
HEADERS = """{%- macro header(role) -%}
<s>{{ role | upper }}{{ '\n\n' }}
{%- endmacro -%}
{%- set ns = namespace(seen=0) -%}
{%- for message in messages -%}
    {%- set ns.seen = ns.seen + 1 -%}
    {{- header(message.role) -}}
    {%- if message.role == "assistant" -%}
        {%- generation -%}{{ message.content }}</s>{%- endgeneration -%}
    {%- elif message.content is string and message.content.startswith('The') -%}
        {{ message.content.split('\n')[0] }}</s>
    {%- else -%}
        {{ message['content'] | trim }}{{ eos_token if ns.seen > 0 }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ header('assistant') }}{%- endif -%}
"""
TEMPLATES = {"chatml": CHATML, "instruct": INSTRUCT, "headers": HEADERS}


def turns(*contents, system=None):
    roles = ["user", "assistant"] * len(contents)
    all = [{"role": role, "content": content} for role, content in zip(roles, contents)]
    return ([{"role": "system", "content": system}] if system else []) + all


CHATS = [
    turns("How many legs has a spider?", "A spider has eight legs."),
    turns("The capital of Italy?\nSay it.", " Rome. ", "And of France?", "Paris\n\nor so"),
    turns("ünï ✓ 語", "  çødé\n", system="Answer in\n  one word. "),
    turns("A question", "", "a question that waits", system="You are <|im_end|> a spider."),
]
ALPACA = [
    {"instruction": "Name the capital of France.", "input": "", "output": "Paris"},
    {"instruction": "Count the legs.", "input": "A spider", "output": " eight\nlegs"},
]
# As in the published code of Stanford Alpaca.
WITH = ("Below is an instruction that describes a task, paired with an input that provides further "
        "context. Write a response that appropriately completes the request.\n\n### Instruction:\n"
        "{instruction}\n\n### Input:\n{input}\n\n### Response:")
WITHOUT = ("Below is an instruction that describes a task. Write a response that appropriately "
           "completes the request.\n\n### Instruction:\n{instruction}\n\n### Response:")


def trained():
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=512, special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    return made


def main():
    path = HERE / "bpe.json"
    path.write_text(trained().to_str())
    read = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path), bos_token="<s>", eos_token="</s>")
    cases = []
    for name, template in TEMPLATES.items():
        for chat in CHATS:
            found = read.apply_chat_template(
                chat, chat_template=template, tokenize=True, return_dict=True,
                return_assistant_tokens_mask=True)
            cases.append({"template": name, "messages": chat, "tokens": found["input_ids"],
                          "answers": found["assistant_masks"]})
    answers = []
    for record in ALPACA:
        prompt = (WITH if record["input"] else WITHOUT).format(**record)
        tokens = read(prompt + record["output"])["input_ids"] + [read.eos_token_id]
        given = len(read(prompt)["input_ids"])
        answers.append(record | {"tokens": tokens, "given": given})
    text = json.dumps({"version": transformers.__version__, "templates": TEMPLATES,
                       "chats": cases, "alpaca": answers}, indent=1, ensure_ascii=False)
    (HERE / "data.json").write_text(text + "\n")
    table = pyarrow.table({"id": list(range(len(CHATS))), "messages": CHATS})
    pyarrow.parquet.write_table(table, HERE / "chats.parquet")
    print(f"{len(cases)} conversations, {len(answers)} instructions")


if __name__ == "__main__":
    main()
