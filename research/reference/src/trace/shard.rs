//! Recording of one prompt: sequences, and drafts with distributions at some of their positions.
//!
//! Stored as one-dimensional tensors, ordered by sequence, position and node; `docs/traces.md`
//! lists them. Files are not trusted: lengths are checked before memory is allocated, and numbers
//! when a position is read.

use std::iter::repeat_n;
use std::ops::Range;

use polydraft::{Distribution, Draft, DraftTree, Drafting, Draws, Growth, NodeId, Token};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::trace::columns::{In, Out, unpack};
use crate::trace::distributions::Distributions;
use crate::trace::header::{FORMAT, VERSION};
use crate::trace::{Error, Result};

/// Maximum number of nodes of a tree including the root, as for policies.
const MOST_NODES: u32 = 16_385;
/// Maximum number of draws in a tree; a shared node counts once per draw.
const MOST_DRAWS: u64 = 1 << 20;
/// Maximum number of sequences after a prompt, as in the header.
const MAX_SEQUENCES: usize = 1 << 20;

/// Metadata of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Metadata {
    pub format: String,
    pub version: u32,
    /// Checksum of the header that the shard belongs to.
    pub header: String,
    /// Number of the prompt in the trace.
    pub number: usize,
    /// Largest probability mass omitted from a distribution.
    pub left_out: f64,
    /// Program that recorded the shard.
    pub made: Value,
}

/// Columns of a shard.
#[derive(Default)]
pub(crate) struct Numbers {
    pub prompt: Vec<Token>,
    /// By sequence.
    pub seeds: Vec<u64>,
    pub lengths: Vec<u32>,
    pub positions: Vec<u32>,
    /// Tokens of all sequences.
    pub tokens: Vec<Token>,
    /// By position: number of preceding tokens of the sequence, number of nodes of the draft.
    pub at: Vec<u32>,
    pub nodes: Vec<u32>,
    /// By node. Parents are indices within the draft.
    pub token: Vec<Token>,
    pub parent: Vec<u32>,
    pub draws: Vec<u32>,
    /// Draws below the node: 0 for none, else 1 + the index of the scheme in [`Drafting::ALL`]; the
    /// number of draws; whether the draws are fresh (not continued from the parent).
    pub scheme: Vec<u8>,
    pub count: Vec<u32>,
    pub fresh: Vec<u8>,
    pub draft: Distributions,
    pub target: Distributions,
}

impl Numbers {
    /// Approximate maximum size in bytes before compression.
    pub fn size(&self) -> usize {
        18 * self.token.len() + self.draft.size() + self.target.size()
    }

    pub fn file(&self, vocabulary: usize, metadata: &Metadata) -> std::io::Result<Vec<u8>> {
        let mut out = Out::default();
        out.add("prompt", self.prompt.iter().copied());
        out.add("text.seed", self.seeds.iter().copied());
        out.add("text.length", self.lengths.iter().copied());
        out.add("text.positions", self.positions.iter().copied());
        out.add("text.tokens", self.tokens.iter().copied());
        out.add("position.at", self.at.iter().copied());
        out.add("position.nodes", self.nodes.iter().copied());
        out.add("node.token", self.token.iter().copied());
        out.add("node.parent", self.parent.iter().copied());
        out.add("node.draws", self.draws.iter().copied());
        out.add("node.scheme", self.scheme.iter().copied());
        out.add("node.count", self.count.iter().copied());
        out.add("node.fresh", self.fresh.iter().copied());
        self.draft.write("draft", vocabulary, &mut out);
        self.target.write("target", vocabulary, &mut out);
        out.file(serde_json::to_string(metadata)?)
    }

    fn read(columns: &In, vocabulary: usize) -> Result<Self> {
        let sum = |column: &[u32]| column.iter().map(|n| *n as usize).sum::<usize>();
        let prompt = columns.column("prompt")?;
        let seeds: Vec<u64> = columns.column("text.seed")?;
        if seeds.len() > MAX_SEQUENCES {
            let expected = format!("at most {MAX_SEQUENCES} sequences");
            return Err(Error::content(columns.at("text.seed"), expected, seeds.len()));
        }
        let lengths: Vec<u32> = columns.column_of("text.length", seeds.len())?;
        let positions: Vec<u32> = columns.column_of("text.positions", seeds.len())?;
        let tokens = columns.column_of("text.tokens", sum(&lengths))?;
        let at: Vec<u32> = columns.column_of("position.at", sum(&positions))?;
        let nodes: Vec<u32> = columns.column_of("position.nodes", at.len())?;
        if let Some(location) = nodes.iter().position(|nodes| !(1..=MOST_NODES).contains(nodes)) {
            let at = format!("{}, position {location} of the file", columns.at("position.nodes"));
            return Err(Error::content(at, format!("from 1 to {MOST_NODES}"), nodes[location]));
        }
        let all = sum(&nodes);
        let scheme: Vec<u8> = columns.column_of("node.scheme", all)?;
        let drawn: Vec<bool> = scheme.iter().map(|scheme| *scheme > 0).collect();
        let numbers = Self {
            token: columns.column_of("node.token", all)?,
            parent: columns.column_of("node.parent", all)?,
            draws: columns.column_of("node.draws", all)?,
            count: columns.column_of("node.count", all)?,
            fresh: columns.column_of("node.fresh", all)?,
            draft: Distributions::read("draft", vocabulary, &drawn, columns)?,
            target: Distributions::read("target", vocabulary, &vec![true; all], columns)?,
            ..Self {
                prompt,
                seeds,
                lengths,
                positions,
                tokens,
                at,
                nodes,
                scheme,
                ..Self::default()
            }
        };
        for (name, tokens) in [("prompt", &numbers.prompt), ("text.tokens", &numbers.tokens)] {
            if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
                return Err(Error::content(
                    columns.at(name),
                    format!("tokens below {vocabulary}"),
                    token,
                ));
            }
        }
        Ok(numbers)
    }
}

/// Recording of one prompt.
pub struct Shard {
    location: String,
    vocabulary: usize,
    metadata: Metadata,
    numbers: Numbers,
    /// First node of each position.
    starts: Vec<usize>,
    sequences: Vec<Text>,
}

/// A sequence after the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Seed of the sequence and its drafts.
    pub seed: u64,
    /// The target's output.
    pub tokens: Vec<Token>,
    /// Positions of the sequence within the shard.
    pub positions: Range<usize>,
}

/// A draft, with the target's distributions at its nodes.
#[derive(Debug)]
pub struct Position {
    /// Number of preceding tokens of the sequence.
    pub at: usize,
    /// The draft at this position.
    pub draft: Draft,
    /// Distributions by node, including the root.
    pub target: Vec<Distribution>,
}

impl Shard {
    /// Reads a shard of a trace with this vocabulary size. `location` is its name in error
    /// messages.
    ///
    /// # Errors
    /// Contents that are not a shard. The error names the tensor.
    pub fn read(location: &str, file: &[u8], vocabulary: usize) -> Result<Self> {
        let bytes = unpack(location, file)?;
        let columns = In::new(location, &bytes)?;
        let metadata: Metadata = serde_json::from_str(&columns.metadata)
            .map_err(|error| Error::content(location, "the metadata of a trace", error))?;
        if (metadata.format.as_str(), metadata.version) != (FORMAT, VERSION) {
            let got = format!("{} {}", metadata.format, metadata.version);
            return Err(Error::content(location, format!("{FORMAT} {VERSION}"), got));
        }
        let numbers = Numbers::read(&columns, vocabulary)?;
        let begin = |lengths: &[u32]| -> Vec<usize> {
            let add = |sum: &mut usize, length: &u32| {
                Some(std::mem::replace(sum, *sum + *length as usize))
            };
            lengths.iter().scan(0, add).collect()
        };
        let starts = begin(&numbers.nodes);
        let (tokens, positions) = (begin(&numbers.lengths), begin(&numbers.positions));
        let text = |index: usize| {
            let range = |starts: &[usize], lengths: &[u32]| {
                starts[index]..starts[index] + lengths[index] as usize
            };
            let tokens = numbers.tokens[range(&tokens, &numbers.lengths)].to_vec();
            let positions = range(&positions, &numbers.positions);
            Text { seed: numbers.seeds[index], tokens, positions }
        };
        let sequences: Vec<Text> = (0..numbers.seeds.len()).map(text).collect();
        for (index, text) in sequences.iter().enumerate() {
            let at = &numbers.at[text.positions.clone()];
            let least = |location: usize| {
                if location == 0 { 0 } else { at[location - 1].saturating_add(1) }
            };
            let sound = |location: usize| {
                (least(location)..=text.tokens.len() as u32).contains(&at[location])
            };
            if let Some(wrong) = (0..at.len()).find(|location| !sound(*location)) {
                let expected = format!(
                    "ascending positions of a sequence of {} tokens, here from {}",
                    text.tokens.len(),
                    least(wrong)
                );
                let location = format!(
                    "{}, sequence {index}, position {wrong} of it",
                    columns.at("position.at")
                );
                return Err(Error::content(location, expected, at[wrong]));
            }
        }
        drop(columns);
        Ok(Self { location: location.to_owned(), vocabulary, metadata, numbers, starts, sequences })
    }

    /// Returns the number of the prompt in its trace.
    pub fn number(&self) -> usize {
        self.metadata.number
    }

    /// Returns the checksum of the header that the shard belongs to.
    pub(crate) fn header(&self) -> &str {
        &self.metadata.header
    }

    /// Returns the name of the file.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Returns the program that recorded the shard.
    pub fn made(&self) -> &Value {
        &self.metadata.made
    }

    /// Returns the largest probability mass omitted from a distribution.
    pub fn left_out(&self) -> f64 {
        self.metadata.left_out
    }

    /// Returns the prompt.
    pub fn prompt(&self) -> &[Token] {
        &self.numbers.prompt
    }

    /// Returns the sequences after the prompt.
    pub fn sequences(&self) -> &[Text] {
        &self.sequences
    }

    /// Returns the number of positions of all sequences.
    pub fn positions(&self) -> usize {
        self.numbers.at.len()
    }

    /// Reads draft and distributions of a position, counted from 0 over all sequences.
    ///
    /// # Errors
    /// A position that does not exist; numbers that are not a valid draft or distribution. The
    /// error names the node.
    pub fn position(&self, position: usize) -> Result<Position> {
        let Some((&at, &begin)) = self.numbers.at.get(position).zip(self.starts.get(position))
        else {
            return Err(Error::content(
                &self.location,
                format!("a position below {}", self.positions()),
                position,
            ));
        };
        let nodes = begin..begin + self.numbers.nodes[position] as usize;
        let draft = self.draft(position, nodes.clone())?;
        let target = nodes.map(|node| {
            let probs = self.numbers.target.distribution(node, self.vocabulary);
            probs.unwrap_or(Distribution::one_hot(self.vocabulary, 0)).map_err(|error| {
                self.invalid_node(position, node - begin, "the target's distribution", error)
            })
        });
        Ok(Position { at: at as usize, draft, target: target.collect::<Result<_>>()? })
    }

    fn draft(&self, position: usize, nodes: Range<usize>) -> Result<Draft> {
        let Numbers { token, parent, draws, scheme, count, fresh, .. } = &self.numbers;
        let content = |node: NodeId, expected: &str, got: String| {
            Err(Error::content(self.at(position, node), expected, got))
        };
        let begin = nodes.start;
        let mut children = vec![Vec::new(); nodes.len()];
        let mut drawn = 0;
        for node in 1..nodes.len() {
            let parent = parent[begin + node] as usize;
            if parent >= node {
                return content(node, "a parent before it", parent.to_string());
            }
            drawn += u64::from(draws[begin + node]);
            if draws[begin + node] == 0 || drawn > MOST_DRAWS {
                return content(
                    node,
                    "at least one draw, at most 2^20 in all",
                    draws[begin + node].to_string(),
                );
            }
            children[parent].push(node);
        }
        // In the order of their draws, so that nodes get the same indices as in the recorded draft.
        let mut parents: Vec<NodeId> =
            (0..nodes.len()).filter(|node| scheme[begin + node] > 0).collect();
        parents.sort_by_key(|node| children[*node].first().copied());
        if let Some(node) =
            (0..nodes.len()).find(|node| children[*node].is_empty() != (scheme[begin + node] == 0))
        {
            return content(
                node,
                "children where something was drawn",
                format!("{}", children[node].len()),
            );
        }
        let mut draft = Draft::new();
        for node in parents {
            let Some(&known) = Drafting::ALL.get(usize::from(scheme[begin + node]) - 1) else {
                let expected = format!("a scheme from 0 to {}", Drafting::ALL.len());
                return content(node, &expected, scheme[begin + node].to_string());
            };
            let growth = match fresh[begin + node] {
                0 => Growth::Continue,
                _ => Growth::Fresh(Draws { scheme: known, count: count[begin + node] as usize }),
            };
            let tokens = children[node].iter().flat_map(|child| {
                let child = begin + child;
                repeat_n(token[child], draws[child] as usize)
            });
            let tokens: Vec<Token> = tokens.collect();
            let wrong = |error| self.invalid_node(position, node, "the draft", error);
            let probs = self.numbers.draft.distribution(begin + node, self.vocabulary);
            let Some(probs) = probs.transpose().map_err(wrong)? else { continue };
            if node >= draft.tree().len() {
                return content(node, "nodes in the order of their draws", "another".to_owned());
            }
            draft.record(node, probs, growth, &tokens).map_err(wrong)?;
            if !draft.tree().children(node).eq(children[node].iter().copied()) {
                return content(
                    node,
                    "each token once, children one after the other",
                    format!("{tokens:?}"),
                );
            }
            if draft.has_fresh_draws(node) != (fresh[begin + node] == 1)
                || draft.draws(node).map(|draws| draws.count) != Some(count[begin + node] as usize)
            {
                return content(
                    node,
                    "draws that begin or go on as drafts do",
                    format!("{growth:?}"),
                );
            }
        }
        match draft.tree().len() == nodes.len() {
            true => Ok(draft),
            false => content(
                DraftTree::ROOT,
                &format!("{} nodes", nodes.len()),
                draft.tree().len().to_string(),
            ),
        }
    }

    fn invalid_node(
        &self,
        position: usize,
        node: NodeId,
        what: &str,
        error: polydraft::Error,
    ) -> Error {
        Error::EmittedDistribution {
            location: format!("{}: {what}", self.at(position, node)),
            error,
        }
    }

    fn at(&self, position: usize, node: NodeId) -> String {
        format!("{}: position {position}, node {node}", self.location)
    }
}
