"""Vocabularies of families that do otherwise than most: other files, other types, tokens known by their texts."""

from __future__ import annotations

from ..errors import GGUFError
from ..formats.value_types import ValueType
from .hparams import Keys
from .pretokenizer import pre_tokenizer
from .sentencepiece import BPE, UNIGRAM, read_sentencepiece
from .special import SpecialTokens, tokenizer_files
from .vocabulary import (
    ADDED_SCORE,
    CONTROL,
    SPACE,
    USER_DEFINED,
    Source,
    Tokens,
    Vocabulary,
    byte_fallback,
    gpt2,
    json_tokens,
    pieces_of,
    sentencepiece,
)

U8, U32, BOOL = ValueType.UINT8, ValueType.UINT32, ValueType.BOOL


def llama(source: Source) -> Keys:
    """SentencePiece, or a tokenizer.json of its kind, or GPT-2's kind; and what single models of Llama's kind need."""
    if source.has("tekken.json") and not source.has("tokenizer.json"):
        raise GGUFError(f"{source.folder / 'tekken.json'}: Mistral's own vocabularies can't be converted yet")
    _, named = tokenizer_files(source.folder)
    keys: Keys = {}
    if isinstance((named or {}).get("add_prefix_space"), bool):
        keys["tokenizer.ggml.add_space_prefix"] = ((named or {})["add_prefix_space"], BOOL)
    if source.has("tokenizer.model"):
        keys.update(sentencepiece(source))
    else:
        keys.update(byte_fallback(source) or gpt2(source))
    size = source.values.get("vocab_size", 32000)
    if size == 32016:  # CodeLlama, whose tokens for infilling have no other mark
        special = source.special(names=("prefix", "suffix", "middle", "eot"))
        special.set("eot", 32010)
        keys.update(special.keys())
    if size == 49152:  # Granite's small models
        keys["tokenizer.ggml.add_bos_token"] = (False, BOOL)
    return keys


def gemma(source: Source) -> Keys:
    """SentencePiece, with the token that ends a turn."""
    keys = sentencepiece(source)
    special = source.special(names=("prefix", "suffix", "middle", "fsep", "eot"))
    special.set("eot", 107)
    special.template = None
    return keys | special.keys() | {"tokenizer.ggml.add_space_prefix": (False, BOOL)}


def gemma_later(source: Source) -> Keys:
    """SentencePiece without a space before texts, else GPT-2's kind."""
    if not source.has("tokenizer.model"):
        return gpt2(source)
    return sentencepiece(source) | {"tokenizer.ggml.add_space_prefix": (False, BOOL)}


def phi3(source: Source) -> Keys:
    """SentencePiece with the added tokens of all three files; Phi-4's is of GPT-2's kind."""
    tokenizer, named = tokenizer_files(source.folder)
    if (named or {}).get("tokenizer_class") == "GPT2Tokenizer":
        return gpt2(source)
    path = source.folder / "tokenizer.model"
    if not path.is_file():
        raise GGUFError(f"{path} isn't there; this model's vocabulary comes from it")
    tokens = pieces_of(source, read_sentencepiece(path))
    more = [(int(number), entry) for number, entry in ((named or {}).get("added_tokens_decoder") or {}).items()]
    more += [(int(entry["id"]), entry) for entry in (tokenizer or {}).get("added_tokens") or ()]
    for token, entry in more:
        if not 0 <= token < len(tokens):
            raise GGUFError(f"{source.folder}: added token {entry['content']!r} has id {token} of {len(tokens)}")
        tokens.put(token, entry["content"], ADDED_SCORE, CONTROL if entry.get("special") else USER_DEFINED)
    return tokens.keys("llama", "default") | source.special(size=len(tokens)).keys()


def bert(source: Source) -> Keys:
    """WordPiece."""
    tokens = json_tokens(source)
    for token, text in enumerate(tokens.texts):  # a word's begin is marked, not its continuation
        if tokens.types[token] != CONTROL:
            tokens.texts[token] = text[2:] if text.startswith("##") else SPACE + text
    keys: Keys = {"tokenizer.ggml.token_type_count": (source.values.get("type_vocab_size", 1), U32)}
    keys.update(tokens.keys("bert", pre_tokenizer(source.folder, source.pre), scores=False))
    return keys | source.special(size=len(tokens)).keys()


def t5(source: Source) -> Keys:
    """SentencePiece's unigrams with their normalization."""
    path = source.folder / "tokenizer.model"
    path = path if path.is_file() else source.folder / "spiece.model"
    if not path.is_file():
        raise GGUFError(f"{source.folder}: no vocabulary; tokenizer.model or spiece.model was expected")
    model = read_sentencepiece(path)
    if model.model_type == BPE and path.name == "tokenizer.model":
        return sentencepiece(source)
    if model.model_type != UNIGRAM:
        raise GGUFError(f"{path}: a unigram model was expected, this is of type {model.model_type}")
    tokens = pieces_of(source, model)
    keys = tokens.keys("t5", "default")
    keys["tokenizer.ggml.add_space_prefix"] = (model.add_dummy_prefix, BOOL)
    keys["tokenizer.ggml.remove_extra_whitespaces"] = (model.remove_extra_whitespaces, BOOL)
    if model.charsmap:
        keys["tokenizer.ggml.precompiled_charsmap"] = (list(model.charsmap), U8)
    return keys | source.special(size=len(tokens)).keys()


def glm(**names: str) -> Vocabulary:
    """GPT-2's kind, with tokens that this family marks nowhere, found by their texts."""

    def vocabulary(source: Source) -> Keys:
        def more(special: SpecialTokens, tokens: Tokens) -> None:
            for name, text in names.items():
                if text not in tokens.texts:
                    path = source.folder / "tokenizer.json"
                    raise GGUFError(f"{path}: token {text!r}, which models of this kind need, isn't there")
                special.set(name, tokens.texts.index(text))

        return gpt2(source, more)

    return vocabulary


def padded(multiple: int, *, json_first: bool = False) -> Vocabulary:
    """As many tokens as a multiple of this, as Mamba's embeddings have."""

    def vocabulary(source: Source) -> Keys:
        size = source.values.get("vocab_size")
        if not isinstance(size, int):
            raise GGUFError(f"{source.folder / 'config.json'}: vocab_size is {size!r}")
        source = source._replace(values={**source.values, "vocab_size": -(size // -multiple) * multiple})
        has_json, has_model = source.has("tokenizer.json"), source.has("tokenizer.model")
        return sentencepiece(source) if has_model and not (json_first and has_json) else gpt2(source)

    return vocabulary


def hunyuan(source: Source) -> Keys:
    """GPT-2's kind; texts end with a token of its own."""
    keys = gpt2(source)
    end = source.values.get("eod_token_id")
    return keys if end is None else keys | {"tokenizer.ggml.eos_token_id": (int(end), U32)}


def ernie(source: Source) -> Keys:
    """SentencePiece, and whether a space comes before texts."""
    if not source.has("tokenizer.model"):
        raise GGUFError(f"{source.folder / 'tokenizer.model'} isn't there; this model's vocabulary comes from it")
    keys = sentencepiece(source)
    _, named = tokenizer_files(source.folder)
    prefix = (named or {}).get("add_prefix_space")
    return keys if prefix is None else keys | {"tokenizer.ggml.add_space_prefix": (bool(prefix), BOOL)}


def nemotron(source: Source) -> Keys:
    """SentencePiece, padding and unknown tokens fixed."""
    fixed: Keys = {"tokenizer.ggml.padding_token_id": (0, U32), "tokenizer.ggml.unknown_token_id": (1, U32)}
    return sentencepiece(source) | fixed


def gemma3n(source: Source) -> Keys:
    """Gemma's, with the tokens of images and sounds that have no embeddings in the layers."""
    values = {key: value for key, value in source.values.items() if key != "vocab_size_per_layer_input"}
    return gemma_later(source._replace(values=values))


def roberta(source: Source) -> Keys:
    """GPT-2's kind where there is a tokenizer.json."""
    count: Keys = {"tokenizer.ggml.token_type_count": (source.values.get("type_vocab_size", 1), U32)}
    return gpt2(source) | count


def modern_bert(source: Source) -> Keys:
    """GPT-2's kind; what comes around texts, where the files say nothing."""
    keys: Keys = {f"tokenizer.ggml.add_{name}_token": (True, BOOL) for name in ("bos", "eos", "sep")}
    return keys | gpt2(source)
