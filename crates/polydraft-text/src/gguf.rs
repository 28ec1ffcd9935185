//! Tokenizer and chat template of a GGUF file, which are in its metadata.

use polydraft::Vocabulary;
use polydraft_gguf::{Gguf, TokenType, TokenizerDescription};

use crate::chat::WITH_TOOLS;
use crate::contained::contained;
use crate::tokenizer::library_panic;
use crate::{ChatTemplate, Language, PublishedSampling, Result, SpecialTokens, Tokenizer};

impl Language {
    /// Reads the tokenizer, the chat template and the end tokens from a GGUF file. The model has
    /// `rows` rows of logits. GGUF files contain no sampling settings.
    ///
    /// # Errors
    /// Fails if the tokenizer is unsupported, invalid, or does not fit the rows, or if the chat
    /// template is invalid. The error names file and key.
    pub fn from_gguf(gguf: &Gguf, rows: usize) -> Result<Self> {
        let metadata = gguf.metadata();
        let path = metadata.path();
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let description = TokenizerDescription::read(metadata)?;
        let tokenizer = match contained(|| description.tokenizer()) {
            Ok(tokenizer) => tokenizer?,
            Err(panic) => return Err(library_panic(path.to_owned(), &panic)),
        };
        let tokenizer = Tokenizer::from_parts(tokenizer, path).with_rows(rows);
        let vocabulary = without_padding(tokenizer.vocabulary(rows)?, &description);
        let special_tokens = roles(&description);
        let chat = match description.chat_template {
            None => None,
            Some(source) => {
                let named =
                    description.named_templates.iter().find(|(name, _)| *name == WITH_TOOLS);
                let parse =
                    |source: &str| ChatTemplate::from_source(source, special_tokens.clone(), path);
                Some(parse(source)?.with_tools(named.map(|(_, source)| parse(source)).transpose()?))
            }
        };
        let end_tokens = description.end_tokens;
        let mut notes = Vec::new();
        if !description.names_splitting {
            notes.push(format!(
                "{} does not say how its tokenizer splits texts (key tokenizer.ggml.pre): it is \
                 read as GPT-2's, and may not be; a newer conversion of the model says it",
                path.display()
            ));
        }
        Ok(Self {
            name,
            tokenizer,
            vocabulary,
            end_tokens,
            chat,
            special_tokens,
            sampling: PublishedSampling::default(),
            notes,
        })
    }
}

/// Returns special tokens by role, under the names that templates use.
fn roles(description: &TokenizerDescription) -> SpecialTokens {
    let special = &description.special;
    let roles = [
        ("bos_token", special.begin),
        ("eos_token", special.end),
        ("unk_token", special.unknown),
        ("pad_token", special.padding),
        ("sep_token", special.separator),
        ("mask_token", special.mask),
    ];
    let token = |id: Option<u32>| description.tokens.get(id? as usize);
    SpecialTokens::from_roles(
        roles.into_iter().filter_map(|(role, id)| Some((role, &**token(id)?))),
    )
}

/// Removes padding tokens: converters give names to the padding rows of the embedding, which round
/// its size. They are not part of the tokenizer, and models that share one have different numbers
/// of them.
fn without_padding(vocabulary: Vocabulary, description: &TokenizerDescription) -> Vocabulary {
    let is_padding = |id: usize| {
        description.types[id] == TokenType::Unused
            && *description.tokens[id] == format!("[PAD{id}]")
    };
    let count = vocabulary.size().min(description.tokens.len());
    let used = (0..count).rev().find(|&id| !is_padding(id)).map_or(0, |id| id + 1);
    if used == 0 || used == vocabulary.size() {
        return vocabulary;
    }
    Vocabulary::new((0..used).map(|id| vocabulary.token(id as u32).map(Box::from)).collect())
}
