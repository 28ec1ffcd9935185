//! Byte-level tokenizers from `vocab.json` and `merges.txt`, the layout of GPT-2 and OPT.

use std::path::{Path, PathBuf};

use polydraft_files::FileKind;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer as HfTokenizer};

use super::around;
use crate::special::SpecialTokens;
use crate::{Error, Result};

/// Reads the tokenizer; also returns the path for messages.
pub(super) fn read(directory: &Path, special: &SpecialTokens) -> Result<(HfTokenizer, PathBuf)> {
    let [vocabulary, merges] = ["vocab.json", "merges.txt"].map(|name| directory.join(name));
    // A dangling link counts as present: reading it reports the error.
    if [&vocabulary, &merges].iter().any(|path| path.symlink_metadata().is_err()) {
        let expected = "tokenizer.json, tekken.json, or vocab.json with merges.txt";
        return Err(Error::Missing { directory: directory.to_owned(), expected });
    }
    for path in [&vocabulary, &merges] {
        polydraft_files::check(path, FileKind::TOKENIZER)
            .map_err(|source| Error::Read { path: path.clone(), source })?;
    }
    let file_error = |e: tokenizers::Error| Error::File {
        path: vocabulary.clone(),
        problem: format!("expected, with merges.txt, a byte-level tokenizer: {e}"),
    };
    let name = |path: &Path| path.to_string_lossy().into_owned();
    let model = BPE::from_file(&name(&vocabulary), &name(&merges)).build().map_err(file_error)?;
    let mut tokenizer = HfTokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let known: Vec<AddedToken> = special
        .roles()
        .filter(|(_, token)| tokenizer.token_to_id(token).is_some())
        .map(|(_, token)| AddedToken::from(token, true))
        .collect();
    tokenizer.add_special_tokens(known).map_err(file_error)?;
    if special.settings.get("add_bos_token") == Some(&Value::Bool(true)) {
        let begin = special
            .role("bos_token")
            .and_then(|token| Some((token.to_owned(), tokenizer.token_to_id(token)?)));
        around::add_around(&mut tokenizer, [begin, None]).map_err(file_error)?;
    }
    Ok((tokenizer, vocabulary))
}
