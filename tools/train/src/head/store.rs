//! What was written, on disk: tokens in JSON, hidden states in 16 bits beside them, read a text at
//! a time.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use half::f16;
use polydraft::Token;
use serde::{Deserialize, Serialize};

use super::text::Batch;

/// A text without its states, which lie in a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    tokens: Vec<Token>,
    taught: Vec<bool>,
    log_sums: Vec<f32>,
    #[serde(skip)]
    place: (usize, u64),
}

/// All texts of a folder.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    /// Numbers of a token's states.
    width: usize,
    entries: Vec<Entry>,
    shards: usize,
}

impl Store {
    /// What a folder holds; it may be none yet.
    pub fn open(folder: &Path, width: usize) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let mut store = Self { folder: folder.to_owned(), width, entries: Vec::new(), shards: 0 };
        while store.list(store.shards).exists() {
            let path = store.list(store.shards);
            let entries: Vec<Entry> = polydraft_files::read(&path, polydraft_files::Kind::TEXT)
                .and_then(|bytes| Ok(serde_json::from_slice(&bytes)?))
                .with_context(|| format!("reading {}", path.display()))?;
            store.take(entries)?;
        }
        Ok(store)
    }

    fn list(&self, shard: usize) -> PathBuf {
        self.folder.join(format!("text-{shard:04}.json"))
    }

    fn states(&self, shard: usize) -> PathBuf {
        self.folder.join(format!("text-{shard:04}.f16"))
    }

    fn take(&mut self, entries: Vec<Entry>) -> Result<()> {
        let mut at = 0;
        for mut entry in entries {
            entry.place = (self.shards, at);
            at += (entry.tokens.len() as u64 - 1) * self.width as u64 * 2;
            self.entries.push(entry);
        }
        let path = self.states(self.shards);
        let got = fs::metadata(&path).with_context(|| format!("reading {}", path.display()))?.len();
        ensure!(
            got == at,
            "{}: expected {at} bytes for this target's states, got {got}",
            path.display()
        );
        self.shards += 1;
        Ok(())
    }

    /// Adds texts, states first: what has no list is not there.
    pub fn add(&mut self, lessons: &[Batch]) -> Result<()> {
        let mut file = std::io::BufWriter::new(File::create(self.states(self.shards))?);
        let mut entries = Vec::with_capacity(lessons.len());
        for Batch { tokens, taught, log_sums, states } in lessons {
            for state in states {
                file.write_all(&f16::from_f32(*state).to_le_bytes())?;
            }
            let (tokens, taught, log_sums) = (tokens.clone(), taught.clone(), log_sums.clone());
            entries.push(Entry { tokens, taught, log_sums, place: (0, 0) });
        }
        file.flush()?;
        let (path, partial) = (self.list(self.shards), self.folder.join("text.partial"));
        fs::write(&partial, serde_json::to_vec(&entries)?)?;
        fs::rename(partial, path)?;
        self.take(entries)
    }

    /// How many texts there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many shards they came in.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// The texts of a shard.
    pub fn of_shard(&self, shard: usize) -> Vec<usize> {
        (0..self.len()).filter(|i| self.entries[*i].place.0 == shard).collect()
    }

    /// How many tokens of a text.
    pub fn tokens(&self, text: usize) -> usize {
        self.entries[text].tokens.len()
    }

    /// Whether there is something to learn from a text: drafts begin behind its second token.
    pub fn teaches(&self, text: usize) -> bool {
        self.entries[text].taught.iter().skip(2).any(|taught| *taught)
    }

    /// A text with its states.
    pub fn read(&self, text: usize) -> Result<Batch> {
        let Entry { tokens, taught, log_sums, place: (shard, at) } = self.entries[text].clone();
        let mut file = File::open(self.states(shard))?;
        file.seek(SeekFrom::Start(at))?;
        let mut bytes = vec![0; (tokens.len() - 1) * self.width * 2];
        file.read_exact(&mut bytes)?;
        let states =
            bytes.as_chunks().0.iter().map(|pair| f16::from_le_bytes(*pair).to_f32()).collect();
        Ok(Batch { tokens, taught, log_sums, states })
    }

    /// The tokens that were taught most often, so many of them, then those of the lowest numbers;
    /// ascending. With the share of what was taught that they are.
    pub fn frequent(&self, count: usize, vocabulary: usize, always: &[Token]) -> (Vec<Token>, f64) {
        let mut counts = vec![0_u64; vocabulary];
        for entry in &self.entries {
            for (token, _) in entry.tokens.iter().zip(&entry.taught).filter(|(_, taught)| **taught)
            {
                counts[*token as usize] += 1;
            }
        }
        let total: u64 = counts.iter().sum();
        let mut tokens: Vec<Token> = (0..vocabulary as Token).collect();
        tokens.sort_by_key(|t| (!always.contains(t), std::cmp::Reverse(counts[*t as usize])));
        tokens.truncate(count);
        let covered: u64 = tokens.iter().map(|t| counts[*t as usize]).sum();
        tokens.sort_unstable();
        (tokens, covered as f64 / total.max(1) as f64)
    }
}
