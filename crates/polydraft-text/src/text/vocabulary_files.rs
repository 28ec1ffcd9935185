//! A byte-level tokenizer from `vocab.json` and `merges.txt`, as GPT-2 began and OPT kept it.

use std::path::{Path, PathBuf};

use polydraft_files::Kind;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer as HfTokenizer};

use super::around;
use crate::special::SpecialTokens;
use crate::{Error, Result};

/// The tokenizer, and the file that messages name.
pub(super) fn read(directory: &Path, special: &SpecialTokens) -> Result<(HfTokenizer, PathBuf)> {
    let [vocabulary, merges] = ["vocab.json", "merges.txt"].map(|name| directory.join(name));
    // A link that leads nowhere is there: reading it reports it.
    if [&vocabulary, &merges].iter().any(|path| path.symlink_metadata().is_err()) {
        let expected = "tokenizer.json, tekken.json, or vocab.json with merges.txt";
        return Err(Error::Missing { directory: directory.to_owned(), expected });
    }
    for path in [&vocabulary, &merges] {
        polydraft_files::check(path, Kind::TOKENIZER)
            .map_err(|source| Error::Read { path: path.clone(), source })?;
    }
    let wrong = |e: tokenizers::Error| Error::File {
        path: vocabulary.clone(),
        problem: format!("expected, with merges.txt, a byte-level tokenizer: {e}"),
    };
    let name = |path: &Path| path.to_string_lossy().into_owned();
    let model = BPE::from_file(&name(&vocabulary), &name(&merges)).build().map_err(wrong)?;
    let mut tokenizer = HfTokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let known: Vec<AddedToken> = special
        .roles()
        .filter(|(_, token)| tokenizer.token_to_id(token).is_some())
        .map(|(_, token)| AddedToken::from(token, true))
        .collect();
    tokenizer.add_special_tokens(known).map_err(wrong)?;
    if special.settings.get("add_bos_token") == Some(&Value::Bool(true)) {
        let begin = special
            .role("bos_token")
            .and_then(|token| Some((token.to_owned(), tokenizer.token_to_id(token)?)));
        around::put(&mut tokenizer, [begin, None]).map_err(wrong)?;
    }
    Ok((tokenizer, vocabulary))
}
