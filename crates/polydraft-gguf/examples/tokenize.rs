//! Tokenizes JSON strings, one per line of standard input, with the tokenizer of a GGUF file:
//! `tokenize FILE`. Writes a pair per line: the tokens with special tokens parsed and added, and
//! the tokens without.

use std::error::Error;
use std::io::{BufRead, Write};
use std::path::Path;

use polydraft_gguf::{Gguf, TokenizerDescription};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("expected the path of a file")?;
    let gguf = Gguf::open(Path::new(&path))?;
    let description = TokenizerDescription::read(gguf.metadata())?;
    let special = description.tokenizer()?;
    let mut plain = special.clone();
    plain.set_encode_special_tokens(true);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let text: String = serde_json::from_str(&line?)?;
        let with_special = special.encode_fast(text.as_str(), true).map_err(|e| e.to_string())?;
        let plain = plain.encode_fast(text.as_str(), false).map_err(|e| e.to_string())?;
        writeln!(out, "{}", serde_json::to_string(&(with_special.get_ids(), plain.get_ids()))?)?;
    }
    Ok(())
}
