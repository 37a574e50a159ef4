"""Writes the tiny random models that the engines serve: models.py FOLDER TOKENIZER

TOKENIZER is a folder with tokenizer.json and tokenizer_config.json (or either with .gz), or a tokenizer.json alone. Weights
are from a seed, so that all machines have the same. FOLDER/tiny has Qwen2's form; tiny-thinking is the same with a chat
template that reads `thinking`; tiny-gemma3 has hybrid caches: five sliding-window layers, then one of full attention; lora
is an adapter of tiny. tools.jinja is tiny's template with another sentence about tools, of as many tokens.
"""
import gzip, json, os, sys
import torch
from safetensors.torch import save_file
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Qwen2Config, Qwen2ForCausalLM

OUT, TOKENIZER = sys.argv[1:3]
CHATML = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def read(name):
    for path, open_ in ((f"{TOKENIZER}/{name}", open), (f"{TOKENIZER}/{name}.gz", gzip.open)):
        if os.path.exists(path):
            return json.load(open_(path, "rt"))


if os.path.isdir(TOKENIZER):
    tokenizer, config = read("tokenizer.json"), read("tokenizer_config.json")
else:
    tokenizer = json.load(open(TOKENIZER))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
              "chat_template": CHATML}
ids = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
for thought in ("<think>", "</think>"):  # Qwen3's, for parsers of reasoning
    ids[thought] = 1 + max(ids.values())
    token = dict(content=thought, lstrip=False, normalized=False, rstrip=False, single_word=False, special=False)
    tokenizer["added_tokens"].append(dict(id=ids[thought], **token))
    config.setdefault("added_tokens_decoder", {})[str(ids[thought])] = token
thoughts = [ids["<think>"], ids["</think>"]]
ids = dict(bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|im_end|>"])
size = 1 + max(t["id"] for t in tokenizer["added_tokens"])
size += -size % 128
if size > 100_000:
    size = 151_936  # Qwen2's own, with unused ids at the end
template = config["chat_template"]
common = dict(vocab_size=size, hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=32768, initializer_range=0.08, tie_word_embeddings=True, **ids)


def folder(name, template=template):
    path = f"{OUT}/{name}"
    os.makedirs(path, exist_ok=True)
    json.dump(tokenizer, open(f"{path}/tokenizer.json", "w"), ensure_ascii=False)
    json.dump({**config, "chat_template": template}, open(f"{path}/tokenizer_config.json", "w"), ensure_ascii=False)
    return path


torch.manual_seed(7)
qwen = Qwen2ForCausalLM(Qwen2Config(num_hidden_layers=2, **common)).to(torch.bfloat16)
qwen.model.embed_tokens.weight.data[thoughts] = 0  # never the most likely ones, unless a request's bias makes them so
turn = "{{- '<|im_start|>assistant\\n' }}"
thinking = template.replace(turn, "{{- '<|im_start|>' + ('thinking' if thinking else 'assistant') + '\\n' }}")
assert thinking != template, "the template has no line that begins the answer"
qwen.save_pretrained(folder("tiny"))
qwen.save_pretrained(folder("tiny-thinking", thinking))
sentence = "You may call one or more functions"
open(f"{OUT}/tools.jinja", "w").write(template.replace(sentence, sentence.replace("may", "must")))

torch.manual_seed(7)
Gemma3ForCausalLM(Gemma3TextConfig(
    num_hidden_layers=6, head_dim=64, sliding_window=128, query_pre_attn_scalar=64, pad_token_id=ids["bos_token_id"],
    layer_types=["sliding_attention"] * 5 + ["full_attention"], **common)).to(torch.bfloat16).save_pretrained(folder("tiny-gemma3"))

lora = f"{OUT}/lora"
os.makedirs(lora, exist_ok=True)
json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny", "r": 8, "lora_alpha": 64,
           "target_modules": ["q_proj", "v_proj"], "bias": "none"}, open(f"{lora}/adapter_config.json", "w"))
weights = {}
for layer in range(2):
    for module, rows in (("q_proj", 256), ("v_proj", 128)):
        at = f"base_model.model.model.layers.{layer}.self_attn.{module}"
        weights[f"{at}.lora_A.weight"] = torch.randn(8, 256) * 0.3
        weights[f"{at}.lora_B.weight"] = torch.randn(rows, 8) * 0.3
save_file(weights, f"{lora}/adapter_model.safetensors")
