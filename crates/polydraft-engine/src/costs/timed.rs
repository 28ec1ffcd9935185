//! A target, or a draft, whose passes are timed, each with the distributions that are made of it at
//! every node.

use polydraft::{Distribution, DraftTree, Sampling, Token};

use super::{any_token, timed};
use crate::{Drafter, Facts, Model, Reads, Result, Sequence};

pub(super) trait Timed {
    /// Of the target.
    fn facts(&self) -> &Facts;

    /// Texts that may be open at once, and tokens of one, or of all together.
    fn room(&self) -> [usize; 2];

    /// Begins an empty text.
    fn open(&mut self) -> Result<Sequence>;

    /// Makes it this text, which its first pass computes.
    fn read(&mut self, sequence: Sequence, text: &[Token]) -> Result<()>;

    fn close(&mut self, sequence: Sequence);

    /// Seconds of a pass over so many rows.
    fn pass(&mut self, sequence: Sequence, rows: usize) -> Result<f64>;

    /// Tokens that there are: no more rows can be beside each other.
    fn vocabulary(&self) -> usize {
        self.facts().vocabulary.size().max(1)
    }

    /// Does something with a text, and closes it whatever becomes of that.
    fn with_text<T>(
        &mut self,
        text: &[Token],
        work: impl FnOnce(&mut Self, Sequence) -> Result<T>,
    ) -> Result<T>
    where
        Self: Sized,
    {
        let sequence = self.open()?;
        let done = self.read(sequence, text).and_then(|()| work(self, sequence));
        self.close(sequence);
        done
    }
}

pub(super) struct Target<'m> {
    pub target: &'m mut dyn Model,
    pub sampling: &'m Sampling,
}

pub(super) struct Draft<'m> {
    pub drafter: &'m mut dyn Drafter,
    /// A drafter may read what it computes.
    pub target: &'m mut dyn Model,
    pub sampling: &'m Sampling,
}

impl Timed for Target<'_> {
    fn facts(&self) -> &Facts {
        self.target.facts()
    }

    fn room(&self) -> [usize; 2] {
        let facts = self.target.facts();
        [facts.sequences, facts.context.min(self.target.room().unwrap_or(usize::MAX))]
    }

    fn open(&mut self) -> Result<Sequence> {
        self.target.open()
    }

    fn read(&mut self, sequence: Sequence, text: &[Token]) -> Result<()> {
        self.target.extend(sequence, text)
    }

    fn close(&mut self, sequence: Sequence) {
        self.target.close(sequence);
    }

    fn pass(&mut self, sequence: Sequence, rows: usize) -> Result<f64> {
        self.target.extend(sequence, &[])?;
        let tree = star(rows - 1, self.vocabulary());
        timed(|| {
            self.target.score(&[(sequence, &tree)])?;
            (0..tree.len()).try_for_each(|node| {
                Distribution::from_logits(self.target.logits(sequence, node), self.sampling)?;
                Ok(())
            })
        })
    }
}

impl Timed for Draft<'_> {
    fn facts(&self) -> &Facts {
        self.target.facts()
    }

    fn room(&self) -> [usize; 2] {
        let facts = self.target.facts();
        let room = self.drafter.room().into_iter().chain(self.target.room()).min();
        [
            facts.sequences.min(self.drafter.sequences()),
            facts.context.min(self.drafter.context()).min(room.unwrap_or(usize::MAX)),
        ]
    }

    fn open(&mut self) -> Result<Sequence> {
        self.drafter.open()
    }

    fn read(&mut self, sequence: Sequence, text: &[Token]) -> Result<()> {
        self.drafter.extend(sequence, text)?;
        if self.drafter.reads() == Reads::Tokens {
            return Ok(());
        }
        let mut target = Target { target: &mut *self.target, sampling: self.sampling };
        let drafter = &mut *self.drafter;
        target.with_text(text, |target, of| {
            target.pass(of, 1)?;
            drafter.read(sequence, target.target, of, text.len().saturating_sub(1))
        })
    }

    fn close(&mut self, sequence: Sequence) {
        self.drafter.close(sequence);
    }

    fn pass(&mut self, sequence: Sequence, rows: usize) -> Result<f64> {
        self.drafter.extend(sequence, &[])?;
        // A pass of one row is the root's; of more, a level below it.
        let (tree, nodes) = match rows {
            1 => (DraftTree::new(), 0..1),
            _ => (star(rows, self.vocabulary()), 1..rows + 1),
        };
        if rows > 1 {
            self.drafter.score(&[(sequence, &DraftTree::new())])?;
        }
        timed(|| {
            self.drafter.score(&[(sequence, &tree)])?;
            nodes.clone().try_for_each(|node| {
                self.drafter.distribution(sequence, node, self.sampling, None)?;
                Ok(())
            })
        })
    }
}

/// A root and so many children.
fn star(children: usize, size: usize) -> DraftTree {
    let mut tree = DraftTree::new();
    (0..children).for_each(|n| {
        tree.add(DraftTree::ROOT, any_token(n, size));
    });
    tree
}
