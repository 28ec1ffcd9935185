//! One text while it is written.

use anyhow::{Context, Result};
use polydraft::{Distribution, DraftTree, Sampling, Token};
use polydraft_engine::{HiddenStates, Model, Sequence, Sequences};
use polydraft_models::TransformerModel;
use polydraft_text::{Language, Message};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

use crate::kinds::Kind;
use crate::shard::{Sample, SampleData};

/// Tokens of a question at most.
const QUESTION: usize = 120;
/// How often a conversation goes on after an answer.
const GOES_ON: f64 = 0.3;
/// At temperature 1 a question is drawn a little tamer than an answer, whose distribution is what
/// is learned.
const ASKING: f64 = 0.95;

/// How long samples become, and how they are drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampleSettings<'a> {
    pub max_sample_tokens: usize,
    pub temperatures: &'a [f64],
    pub kept: SampleData,
}

/// A text while it is written.
pub(crate) struct OpenSample {
    pub sequence: Sequence,
    pub sample: Sample,
    rng: ChaCha12Rng,
    kept: SampleData,
    kind: Kind,
    temperature: f64,
    said: Vec<Message>,
    /// Words that this turn began with, which the model did not write.
    opening: &'static str,
    /// Where the turn began that is being written, after its opening.
    turn: usize,
    answers: bool,
}

/// A token that was drawn, and the sum after its distribution.
pub(crate) struct DrawnToken {
    token: Token,
    log_sum: f32,
    likeliest: Vec<(Token, f32)>,
}

impl OpenSample {
    pub fn open(
        model: &mut TransformerModel,
        language: &Language,
        settings: SampleSettings<'_>,
        seed: u64,
    ) -> Result<Self> {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let kind = Kind::draw(language.chat.is_some(), &mut rng);
        let temperature = settings.temperatures[rng.random_range(0..settings.temperatures.len())];
        let sample = Sample {
            kind: kind.number(),
            tokens: Vec::new(),
            taught: Vec::new(),
            log_sums: Vec::new(),
            states: Vec::new(),
            likeliest: Vec::new(),
        };
        let opening = kind.opening(&mut rng);
        let mut talk = Self {
            sequence: model.open()?,
            sample,
            rng,
            kept: settings.kept,
            kind,
            temperature,
            said: Vec::new(),
            opening,
            turn: 0,
            answers: !kind.is_talk(),
        };
        if kind.is_talk() {
            talk.ask(model, language)?;
        } else {
            let mut tokens = language.tokenizer.encode(opening)?;
            if tokens.is_empty() {
                // No token begins a text: any may.
                tokens.push(talk.rng.random_range(0..language.vocabulary.size() as Token));
            }
            talk.set(model, tokens)?;
        }
        Ok(talk)
    }

    /// Begins a question.
    fn ask(&mut self, model: &mut TransformerModel, language: &Language) -> Result<()> {
        const PLACE: &str = "\u{e000}";
        let template = language.chat.as_ref().context("a chat template")?;
        let said = [&self.said[..], &[Message::user(PLACE)]].concat();
        let text = template.render(&said)?;
        let (before, _) =
            text.split_once(PLACE).context("a chat template that repeats what the user says")?;
        self.answers = false;
        self.set(model, language.tokenizer.encode_plain(&format!("{before}{}", self.opening))?)
    }

    /// What was written and what is put to the model differ where the template adds words.
    fn set(&mut self, model: &mut TransformerModel, tokens: Vec<Token>) -> Result<()> {
        let sample = &mut self.sample;
        let common = sample.tokens.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        sample.taught.truncate(common);
        sample.log_sums.truncate(common);
        sample.likeliest.truncate(common);
        sample.taught.resize(tokens.len(), false);
        sample.log_sums.resize(tokens.len(), 0.0);
        sample.likeliest.resize(tokens.len(), Vec::new());
        model.truncate(self.sequence, common);
        model.extend(self.sequence, &tokens[common..])?;
        self.turn = tokens.len();
        sample.tokens = tokens;
        Ok(())
    }

    /// Draws the next token. `spare` is a distribution to work in.
    pub fn draw(
        &mut self,
        model: &TransformerModel,
        spare: &mut Option<Distribution>,
    ) -> Result<DrawnToken> {
        let logits = model.logits(self.sequence, DraftTree::ROOT);
        let mut own = match spare.take() {
            Some(spare) => spare,
            None => Distribution::from_logits(logits, &Sampling::default())?,
        };
        let (mut log_sum, mut likely) = (0.0, Vec::new());
        if self.answers {
            own.set_from_logits(logits, &Sampling::default())?;
            let likeliest = own.argmax();
            log_sum = logits[likeliest as usize] - own.probability(likeliest).ln() as f32;
            likely = self.kept.likeliest(&own);
        }
        let temperature = self.temperature;
        if !self.answers || temperature != 1.0 {
            let top_p = if self.answers || temperature < 1.0 { 1.0 } else { ASKING };
            own.set_from_logits(logits, &Sampling { temperature, top_p, ..Sampling::default() })?;
        }
        let token = own.sample(&mut self.rng);
        *spare = Some(own);
        Ok(DrawnToken { token, log_sum, likeliest: likely })
    }

    /// Takes a token; whether there is more to write.
    pub fn take(
        &mut self,
        drawn: DrawnToken,
        model: &mut TransformerModel,
        language: &Language,
        settings: SampleSettings<'_>,
        ends: &[Token],
    ) -> Result<bool> {
        self.sample.tokens.push(drawn.token);
        self.sample.taught.push(self.answers);
        self.sample.log_sums.push(drawn.log_sum);
        self.sample.likeliest.push(drawn.likeliest);
        model.extend(self.sequence, &[drawn.token])?;
        let written = &self.sample.tokens[self.turn..];
        let ended = ends.contains(&drawn.token);
        let full = self.sample.tokens.len() >= settings.max_sample_tokens;
        if full || !(ended || (!self.answers && written.len() >= QUESTION)) {
            return Ok(!full);
        }
        let words = if ended { &written[..written.len() - 1] } else { written };
        let words = language.tokenizer.decode(words)?;
        if !self.kind.is_talk() || words.trim().is_empty() {
            return Ok(false);
        }
        if self.answers {
            self.said.push(Message::assistant(words.trim()));
            if self.rng.random_range(0.0..1.0) >= GOES_ON {
                return Ok(false);
            }
            self.opening = "";
            self.ask(model, language)?;
        } else {
            self.said.push(Message::user(format!("{}{words}", self.opening).trim()));
            self.answers = true;
            let tokens = language.encode_chat(&self.said)?;
            self.set(model, tokens)?;
        }
        Ok(self.sample.tokens.len() < settings.max_sample_tokens)
    }

    pub fn close(mut self, model: &mut TransformerModel) -> Result<Sample> {
        if self.kept == SampleData::HiddenStates {
            let known = self.sample.tokens.len().saturating_sub(1);
            while model.prepare(self.sequence, usize::MAX)? > 0 {}
            self.sample.states = model.hidden_states(self.sequence, 0..known)?;
        }
        model.close(self.sequence);
        Ok(self.sample)
    }
}
