"""What compare.py needs to know of a GGUF file: the model's shape, and the bytes of its tensors."""

import dataclasses
import struct

# ggml type: (numbers of a block, bytes of a block)
BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    20: (32, 18),
    30: (1, 2),
}
SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
STRING, ARRAY = 8, 9
FULL_EVERY = {"gemma3": 6}  # of a model with a window; others have it in all layers


@dataclasses.dataclass
class Model:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    body_products: int  # multiply-adds of one token in all matrices but the output head
    head_products: int
    weight_bytes: int  # that one token reads: a tied embedding once, of experts the chosen ones
    window: int = 0
    window_layers: int = 0
    ffn: int = 0

    def layer_tokens(self, tokens):
        """What all layers see of so many tokens."""
        full = self.layers - self.window_layers
        return full * tokens + self.window_layers * min(tokens, self.window)

    def attention_operations(self, tokens_seen):
        """Operations of one token that attends to so many: query x key and weights x values."""
        return 4 * self.heads * self.head_dim * self.layer_tokens(tokens_seen)

    def kv_bytes(self, tokens, kv):
        size = {"f16": 2, "q8_0": 34 / 32, "q4_0": 18 / 32}[kv]
        return 2 * self.kv_heads * self.head_dim * size * self.layer_tokens(tokens)


class Reader:
    def __init__(self, file):
        self.file = file

    def scalar(self, form):
        return struct.unpack(form, self.file.read(struct.calcsize(form)))[0]

    def string(self):
        return self.file.read(self.scalar("<Q")).decode("utf-8", "replace")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, count = self.scalar("<I"), self.scalar("<Q")
            if inner in SCALARS:
                self.file.seek(struct.calcsize(SCALARS[inner]) * count, 1)
                return None
            return [self.value(inner) for _ in range(count)] and None
        return self.scalar(SCALARS[kind])


def read(path):
    with open(path, "rb") as file:
        r = Reader(file)
        if file.read(4) != b"GGUF":
            raise SystemExit(f"{path}: not a GGUF file")
        r.scalar("<I")
        num_tensors, num_keys = r.scalar("<Q"), r.scalar("<Q")
        keys = {}
        for _ in range(num_keys):
            name = r.string()
            keys[name] = r.value(r.scalar("<I"))
        tensors = {}
        for _ in range(num_tensors):
            name = r.string()
            numbers = 1
            for _ in range(r.scalar("<I")):
                numbers *= r.scalar("<Q")
            block, size = BLOCKS[r.scalar("<I")]
            r.scalar("<Q")
            tensors[name] = (numbers, numbers // block * size)
    arch = keys["general.architecture"]
    used = keys.get(f"{arch}.expert_used_count", 1) / keys.get(f"{arch}.expert_count", 1)
    for name, sizes in tensors.items():
        if "_exps" in name:
            tensors[name] = tuple(round(size * used) for size in sizes)
    heads, hidden = keys[f"{arch}.attention.head_count"], keys[f"{arch}.embedding_length"]
    tied = "output.weight" not in tensors
    head_name = "token_embd.weight" if tied else "output.weight"
    matrices = {
        n: t
        for n, t in tensors.items()
        if n.startswith("blk.") and n.endswith(".weight") and "norm" not in n
    }
    unread = 0 if tied else tensors["token_embd.weight"][1]
    window, layers = keys.get(f"{arch}.attention.sliding_window", 0), keys[f"{arch}.block_count"]
    return Model(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=keys[f"{arch}.attention.head_count_kv"],
        head_dim=keys.get(f"{arch}.attention.key_length")
        or keys.get(f"{arch}.rope.dimension_count")
        or hidden // heads,
        body_products=sum(n for n, _ in matrices.values()),
        head_products=tensors[head_name][0],
        weight_bytes=sum(b for _, b in tensors.values()) - unread,
        window=window,
        window_layers=window and layers - layers // FULL_EVERY.get(arch, layers + 1),
        ffn=keys.get(f"{arch}.feed_forward_length", 0),
    )
