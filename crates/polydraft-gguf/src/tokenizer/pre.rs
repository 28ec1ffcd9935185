//! Pre-tokenization: splits text before bytes are merged, by the name in `tokenizer.ggml.pre`.
//!
//! Source: regular expressions of llama.cpp (`llm_tokenizer_bpe`), adapted from those that the
//! models were trained with. Each expression splits the parts that the previous one left; text
//! between its matches becomes parts, too.
//! Deviations:
//! 1. Letters, numbers and punctuation are by Unicode 16, the version of regex-syntax. llama.cpp
//!    has Unicode 15, so 4,395 newer characters of rare scripts may be split differently.
//! 2. `deepseek-llm` and `deepseek-coder` have the ideographic space in a character class.
//!    llama.cpp replaces it by another white space before matching, so that the class never matches
//!    it. Here it does, as in the tokenizer that the models were trained with.
//! 3. llama.cpp does not split text from a number behind it in `afmoe`, so white space there is
//!    split once more. Here numbers are split from both sides, as in `deepseek-v3`.
//! 4. llama.cpp's code for `kimi-k2` takes all letters together; the expression of the model's own
//!    tokenizer, used here, splits words of lower case from those of upper case.

use crate::Result;
use crate::error::shown;
use crate::metadata::Metadata;

/// A pre-tokenization algorithm.
#[derive(Debug, PartialEq, Eq)]
pub struct PreTokenizer {
    /// Names in `tokenizer.ggml.pre`.
    pub names: &'static [&'static str],
    /// Regular expressions, applied in order.
    pub expressions: &'static [&'static str],
    /// Whether a part that is a token is used without merging.
    pub ignore_merges: bool,
    /// Whether the begin token is prepended by default.
    pub add_begin: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK: &[&str] = &[
    r"[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
];
const DEEPSEEK_CODER: &[&str] =
    &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"];
const DEEPSEEK3: &[&str] = &[
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

const BAILING: &str = r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Groups of three digits from the right; letters of East Asian scripts; the rest as DeepSeek V3.
const AFMOE: &[&str] = &[
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
    DEEPSEEK3[2],
];

const SEED_CODER: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const JAIS2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const YOUTU: &[&str] = &[
    r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
/// Han characters apart; words of upper case and of lower case, with their marks.
const KIMI_K2: &str = r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const GRANITE_EMBED: &str = r"[^\r\n\p{L}\p{N}]?((?=[\p{L}\p{M}])([^a-z]))*((?=[\p{L}\p{M}])([^A-Z]))+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?((?=[\p{L}\p{M}])([^a-z]))+((?=[\p{L}\p{M}])([^A-Z]))*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SPARK: &[&str] = &[
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
    r"\p{N}",
];

const PLAIN: PreTokenizer =
    PreTokenizer { names: &[], expressions: &[], ignore_merges: false, add_begin: false };

/// All supported algorithms.
static ALL: [PreTokenizer; 27] = [
    PreTokenizer {
        names: &["default"],
        expressions: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "mellum",
            "a.x-4.0",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        expressions: &[GPT2],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        expressions: &[DIGIT, GPT2],
        ..PLAIN
    },
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        expressions: &[LLAMA3],
        ignore_merges: true,
        add_begin: true,
    },
    PreTokenizer { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], expressions: &[LLAMA3], ..PLAIN },
    PreTokenizer { names: &["glm4", "glm5"], expressions: &[LLAMA3], ignore_merges: true, ..PLAIN },
    PreTokenizer {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        expressions: &[QWEN2],
        ..PLAIN
    },
    PreTokenizer {
        names: &["tekken"],
        expressions: &[TEKKEN],
        ignore_merges: true,
        add_begin: true,
    },
    PreTokenizer {
        names: &["falcon"],
        expressions: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
        ..PLAIN
    },
    PreTokenizer { names: &["qwen35"], expressions: &[QWEN35], ..PLAIN },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        expressions: &[GPT4O],
        ..PLAIN
    },
    PreTokenizer { names: &["deepseek-llm"], expressions: DEEPSEEK, ..PLAIN },
    PreTokenizer { names: &["deepseek-coder"], expressions: DEEPSEEK_CODER, ..PLAIN },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        expressions: DEEPSEEK3,
        ..PLAIN
    },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        expressions: &[BAILING],
        ..PLAIN
    },
    PreTokenizer { names: &["afmoe"], expressions: AFMOE, ..PLAIN },
    PreTokenizer { names: &["seed-coder"], expressions: &[SEED_CODER], ..PLAIN },
    PreTokenizer { names: &["exaone-moe"], expressions: &[EXAONE_MOE], ..PLAIN },
    PreTokenizer { names: &["jais-2"], expressions: &[JAIS2], ..PLAIN },
    PreTokenizer { names: &["youtu"], expressions: YOUTU, ignore_merges: true, ..PLAIN },
    PreTokenizer { names: &["kimi-k2"], expressions: &[KIMI_K2], ..PLAIN },
    PreTokenizer { names: &["bloom", "gpt3-finnish", "poro-chat"], expressions: &[BLOOM], ..PLAIN },
    PreTokenizer { names: &["viking"], expressions: &[BLOOM, DIGIT], ..PLAIN },
    PreTokenizer {
        names: &["granite-embed-multi-97m"],
        expressions: &[GRANITE_EMBED],
        ignore_merges: true,
        ..PLAIN
    },
    PreTokenizer { names: &["spark2_5"], expressions: SPARK, ..PLAIN },
    PreTokenizer { names: &["laguna"], expressions: &[r"[^\n]+|[\n]+", QWEN2], ..PLAIN },
    PreTokenizer {
        names: &["minicpm5"],
        expressions: &[r"\p{N}{1,3}", MINICPM5],
        ignore_merges: true,
        ..PLAIN
    },
];

impl PreTokenizer {
    /// Returns all supported algorithms.
    pub fn all() -> &'static [Self] {
        &ALL
    }

    /// Returns the algorithm that the metadata names, or the default.
    pub(super) fn read(metadata: &Metadata) -> Result<&'static Self> {
        let name =
            metadata.optional(super::PRE, |m, key| m.str(key))?.filter(|name| !name.is_empty());
        let name = name.unwrap_or("default");
        ALL.iter().find(|pre| pre.names.contains(&name)).ok_or_else(|| {
            let known: Vec<_> = ALL.iter().flat_map(|pre| pre.names).copied().collect();
            metadata.invalid_key(super::PRE, format!("one of {}", known.join(", ")), shown(name))
        })
    }
}
