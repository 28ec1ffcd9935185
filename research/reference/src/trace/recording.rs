//! Records a trace while a sequence is decoded.

use polydraft::{Draft, Error, Result, TargetDistributions, Token};
use rayon::prelude::*;
use serde_json::Value;

use crate::trace::Header;
use crate::trace::columns::MOST;
use crate::trace::distributions::Packed;
use crate::trace::header::{FORMAT, VERSION};
use crate::trace::shard::{Metadata, Numbers};

/// Recording of one prompt, which becomes a shard.
///
/// ```
/// use polydraft::{Distribution, Draft, Draws, Growth};
/// use polydraft_reference::trace::{Header, Recording, Shard};
/// use rand::SeedableRng;
///
/// let header: Header = serde_json::from_str(
///     r#"{"format": "polydraft-trace", "version": 1, "target": "a table", "draft": "another",
///         "vocabulary": 3, "sampling": {}, "draft_sampling": {},
///         "tree": {"tree": "paths", "paths": 2, "depth": 1}, "mass": 1.0, "texts": 1,
///         "max_tokens": 1, "every": 1, "seed": 0, "made": null}"#,
/// )?;
/// let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
/// let mut draft = Draft::new();
/// draft.draw(0, Distribution::new(vec![0.2, 0.3, 0.5])?, Growth::Fresh(Draws::iid(2)), &mut rng)?;
/// let target = vec![Distribution::new(vec![0.5, 0.3, 0.2])?; draft.tree().len()];
///
/// let mut recording = Recording::new(&header, &[2, 1]);
/// recording.begin(7);
/// recording.position(0, &draft, &target)?;
/// recording.end(&[1]);
/// let file = recording.file(0, "00000000", &"me".into())?;
///
/// let shard = Shard::read("memory", &file, 3)?;
/// let position = shard.position(0)?;
/// assert_eq!((position.draft.tree(), &position.target), (draft.tree(), &target));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Recording {
    vocabulary: usize,
    mass: f64,
    left_out: f64,
    /// Number of positions of the current sequence.
    positions: u32,
    numbers: Numbers,
}

impl Recording {
    /// Creates an empty recording of a prompt.
    pub fn new(header: &Header, prompt: &[Token]) -> Self {
        let numbers = Numbers { prompt: prompt.to_vec(), ..Numbers::default() };
        Self {
            vocabulary: header.vocabulary,
            mass: header.mass,
            left_out: 0.0,
            positions: 0,
            numbers,
        }
    }

    /// Starts the next sequence, with this seed.
    pub fn begin(&mut self, seed: u64) {
        self.numbers.seeds.push(seed);
        self.positions = 0;
    }

    /// Records the draft after `at` tokens of the sequence, and the target's distributions at its
    /// nodes.
    ///
    /// # Errors
    /// A distribution that cannot be computed; more than the limit of a shard.
    pub fn position(
        &mut self,
        at: usize,
        draft: &Draft,
        target: &dyn TargetDistributions,
    ) -> Result<()> {
        if draft.form().distinct() > 0 {
            return Err(Error::Unsupported {
                operation: "recording",
                expected: "draws from one distribution at a node".to_owned(),
                got: draft.form().to_string(),
            });
        }
        let tree = draft.tree();
        let packed = (0..tree.len()).into_par_iter().map(|node| {
            let children: Vec<Token> = tree.children(node).map(|child| tree.token(child)).collect();
            let probs = target.target(node)?;
            if probs.vocabulary() != self.vocabulary {
                let (operation, expected) = ("recording", self.vocabulary.to_string());
                return Err(Error::Length { operation, expected, got: probs.vocabulary() });
            }
            let drawn =
                draft.distribution(node).map(|probs| Packed::new(probs, self.mass, &children));
            Ok((drawn, Packed::new(probs, self.mass, &children)))
        });
        let packed = packed.collect::<Result<Vec<_>>>()?;
        let numbers = &mut self.numbers;
        numbers.at.push(at as u32);
        numbers.nodes.push(tree.len() as u32);
        for (node, (drawn, target)) in packed.into_iter().enumerate() {
            numbers.token.push(tree.token(node));
            numbers.parent.push(tree.parent(node) as u32);
            numbers.draws.push(tree.draws(node) as u32);
            let draws = draft.draws(node);
            numbers.scheme.push(draws.map_or(0, |draws| 1 + draws.scheme as u8));
            numbers.count.push(draws.map_or(0, |draws| draws.count as u32));
            numbers.fresh.push(u8::from(draft.has_fresh_draws(node)));
            let missing = drawn.as_ref().map_or(0.0, |probs| probs.left_out).max(target.left_out);
            self.left_out = self.left_out.max(missing);
            numbers.draft.push(drawn);
            numbers.target.push(Some(target));
        }
        self.positions += 1;
        if numbers.size() > MOST {
            return Err(Error::TooLarge {
                operation: "recording",
                expected: format!(
                    "at most {} MiB per prompt: fewer positions, or a smaller stored mass",
                    MOST >> 20
                ),
                got: format!("{} MiB after {at} tokens of a sequence", numbers.size() >> 20),
            });
        }
        Ok(())
    }

    /// Ends the sequence, and stores all of its tokens.
    pub fn end(&mut self, tokens: &[Token]) {
        self.numbers.lengths.push(tokens.len() as u32);
        self.numbers.positions.push(self.positions);
        self.numbers.tokens.extend_from_slice(tokens);
    }

    /// Returns the prompt.
    pub fn prompt(&self) -> &[Token] {
        &self.numbers.prompt
    }

    /// Returns the number of positions of all sequences.
    pub fn positions(&self) -> usize {
        self.numbers.at.len()
    }

    /// Returns the largest probability mass omitted from a distribution so far.
    pub fn left_out(&self) -> f64 {
        self.left_out
    }

    /// Returns the contents of the shard file. `number` is the prompt's number in the trace,
    /// `header` the checksum of the header file, and `made` the recording program.
    ///
    /// # Errors
    /// More tensors than the format can have.
    pub fn file(&self, number: usize, header: &str, made: &Value) -> std::io::Result<Vec<u8>> {
        let metadata = Metadata {
            format: FORMAT.to_owned(),
            version: VERSION,
            header: header.to_owned(),
            number,
            left_out: self.left_out,
            made: made.clone(),
        };
        self.numbers.file(self.vocabulary, &metadata)
    }
}
