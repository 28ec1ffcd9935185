//! Begin and end tokens that `tokenizer_config.json` requests but `tokenizer.json` does not add.

use serde_json::Value;
use tokenizers::processors::template::{SpecialToken, TemplateProcessing};
use tokenizers::{PostProcessor, Tokenizer as HfTokenizer};

use crate::special::{SETTINGS, SpecialTokens};

/// Tokenizer classes of transformers that add tokens around a text by their settings, whatever
/// `tokenizer.json` contains.
const CLASSES: [&str; 4] =
    ["LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast"];

/// Applies `add_bos_token` and `add_eos_token` if the tokenizer adds no tokens itself, and its
/// class follows these settings.
pub(super) fn apply(
    tokenizer: &mut HfTokenizer,
    special: &SpecialTokens,
) -> tokenizers::Result<()> {
    let class = special.settings.get("tokenizer_class").and_then(Value::as_str);
    let adds =
        tokenizer.get_post_processor().is_some_and(|processor| processor.added_tokens(false) > 0);
    if adds || !class.is_some_and(|class| CLASSES.contains(&class)) {
        return Ok(());
    }
    let mut sides = [None, None];
    for (side, (setting, role)) in
        sides.iter_mut().zip([("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")])
    {
        if special.settings.get(setting) != Some(&Value::Bool(true)) {
            continue;
        }
        let token = special
            .role(role)
            .and_then(|token| Some((token.to_owned(), tokenizer.token_to_id(token)?)));
        *side = Some(token.ok_or_else(|| {
            format!(
                "expected the {role} of {SETTINGS} among the tokens, because {setting} is true, \
                got none"
            )
        })?);
    }
    add_around(tokenizer, sides)
}

/// Adds these tokens before and after every text.
pub(super) fn add_around(
    tokenizer: &mut HfTokenizer,
    sides: [Option<(String, u32)>; 2],
) -> tokenizers::Result<()> {
    let (mut template, mut tokens) = (vec!["$A"], Vec::new());
    let [begin, end] = sides;
    for (name, (token, id)) in
        [("bos", begin), ("eos", end)].into_iter().filter_map(|(n, t)| Some((n, t?)))
    {
        template.insert(if name == "bos" { 0 } else { template.len() }, name);
        tokens.push(SpecialToken::new(name.to_owned(), vec![id], vec![token])?);
    }
    if !tokens.is_empty() {
        let mut builder = TemplateProcessing::builder();
        builder.try_single(template)?.special_tokens(tokens);
        tokenizer.with_post_processor(Some(builder.build().map_err(|e| e.to_string())?));
    }
    Ok(())
}
