use super::*;
use crate::drafter::ngram::counts::Counts;
use crate::drafter::ngram::hash::key;
use crate::drafter::ngram::merged::{MAX_VISITS, OCCURRENCE_WEIGHT, PRIOR_WEIGHT, predict};

fn vocabulary() -> Vocabulary {
    Vocabulary::numbered(10)
}

/// After token 1 the model emitted 2 or 3; after 5 1 nearly always 4.
fn learner() -> NgramLearner {
    let mut learner = NgramLearner::new(&vocabulary());
    for _ in 0..3 {
        learner.learn(&[7, 1], &[(2, 0.5), (3, 0.5)]);
    }
    learner.learn(&[5, 1], &[(4, 0.96), (2, 0.04)]);
    learner
}

fn near(found: &[(Token, f64)], expected: &[(Token, f64)]) {
    assert_eq!(found.len(), expected.len(), "{found:?} {expected:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.0, expected.0);
        // Shares are stored in 16 bits.
        assert!((found.1 - expected.1).abs() < 1e-4, "{found:?} {expected:?}");
    }
}

/// Expected values by the formula in `merged.rs`, computed by hand.
#[test]
fn prediction_follows_the_interpolation_formula() {
    let table = learner().table();
    let all = [(2, 1.54 / 4.0), (3, 1.5 / 4.0), (4, 0.96 / 4.0)];
    near(&table.prediction(&[8]), &all);
    // Token 1 was visited four times, as often as the empty context.
    let after_one =
        all.map(|(token, p)| (token, (4.0 * p + PRIOR_WEIGHT * p) / (4.0 + PRIOR_WEIGHT)));
    near(&table.prediction(&[9, 1]), &after_one);
    let after_two: Vec<(Token, f64)> = after_one
        .iter()
        .map(|(token, p)| {
            let seen = [0.0, 0.0, 0.04, 0.0, 0.96][*token as usize];
            (*token, (seen + PRIOR_WEIGHT * p) / (1.0 + PRIOR_WEIGHT))
        })
        .collect();
    let prediction = table.prediction(&[6, 5, 1]);
    near(&prediction, &after_two);
    assert!((prediction.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-4);
}

/// Many visits count as at most `MAX_VISITS`, so the sequence's own counts matter.
#[test]
fn sequence_counts_are_merged_with_the_table() {
    let mut learner = NgramLearner::new(&vocabulary());
    for _ in 0..100 {
        learner.learn(&[1], &[(2, 0.75), (3, 0.25)]);
    }
    let table = learner.table();
    let mut counts = Counts::new(8);
    for _ in 0..2 {
        counts.add(&[5, 1], 3);
    }
    let total = MAX_VISITS + 2.0 * OCCURRENCE_WEIGHT + PRIOR_WEIGHT;
    let expected = |p: f64, times: f64| {
        (MAX_VISITS * p + OCCURRENCE_WEIGHT * times + PRIOR_WEIGHT * p) / total
    };
    near(
        &predict(&[9, 1], &table, &[&counts]),
        &[(2, expected(0.75, 0.0)), (3, expected(0.25, 2.0))],
    );
    // A context that only the sequence has, then one that neither has.
    let shorter = predict(&[9, 1], &table, &[&counts]);
    let with = |(token, p): &(Token, f64)| {
        (
            *token,
            (if *token == 3 { 2.0 * OCCURRENCE_WEIGHT } else { 0.0 } + PRIOR_WEIGHT * p)
                / (2.0 * OCCURRENCE_WEIGHT + PRIOR_WEIGHT),
        )
    };
    let expected: Vec<(Token, f64)> = shorter.iter().map(with).collect();
    near(&predict(&[5, 1], &table, &[&counts]), &expected);
    near(&predict(&[7, 5, 1], &table, &[&counts]), &expected);
    // With an empty table only the sequence counts.
    let empty = NgramLearner::new(&vocabulary());
    near(
        &predict(&[9, 1], &empty, &[&counts]),
        &[(3, 2.0 * OCCURRENCE_WEIGHT / (2.0 * OCCURRENCE_WEIGHT + PRIOR_WEIGHT))],
    );
    assert_eq!(predict(&[9], &empty, &[&counts]), []);
}

/// Contexts visited once are evicted; the distributions of the others stay.
#[test]
fn decay_evicts_contexts_visited_once() {
    let mut learner = learner();
    let before = learner.table().prediction(&[7, 1]);
    learner.decay();
    assert_eq!((learner.contexts(), learner.learned()), (1 + 1 + 1, 4));
    let table = learner.table();
    assert_eq!(table.orders[2].visits, [1]);
    // Three visits became one, and the sums do not exceed it: the file can be read.
    assert_eq!(NgramTable::from_bytes(&table.to_bytes()).unwrap(), table);
    let (visits, sums) = learner.find(2, key(&[7, 1])).unwrap();
    assert_eq!(visits, 1.0);
    near(&sums, &[(2, 0.5), (3, 0.5)]);
    let after = table.prediction(&[7, 1]);
    for ((token, p), (other, q)) in before.iter().zip(&after) {
        assert!(token == other && (p - q).abs() < 0.2, "{before:?} {after:?}");
    }
    learner.decay();
    learner.decay();
    assert_eq!(learner.contexts(), 0);
    assert_eq!(learner.table().prediction(&[7, 1]), []);
}

/// The number of contexts is bounded; recurring contexts stay.
#[test]
fn number_of_contexts_is_bounded() {
    let vocabulary = Vocabulary::numbered(2000);
    let mut learner = NgramLearner::new(&vocabulary);
    learner.max_contexts = 500;
    for token in 0..1500 {
        learner.learn(&[7, 1], &[(2, 1.0)]);
        learner.learn(&[token, token + 1], &[(3, 1.0)]);
        assert!(learner.contexts() <= 500, "{token}: {}", learner.contexts());
    }
    assert_eq!(learner.learned(), 3000);
    let (_, followers) = learner.find(2, key(&[7, 1])).unwrap();
    assert_eq!(followers.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [2]);
}

/// Contexts with very many followers only store the frequent ones.
#[test]
fn number_of_followers_is_bounded() {
    let vocabulary = Vocabulary::numbered(2000);
    let mut learner = NgramLearner::new(&vocabulary);
    for token in 0..1500 {
        learner.learn(&[1], &[(7, 0.5), (token.max(8), 0.4)]);
    }
    for (length, context) in [(0, &[][..]), (1, &[1])] {
        let (visits, followers) = learner.find(length, key(context)).unwrap();
        assert_eq!(visits, 1500.0);
        assert!(
            followers.len() <= 256 && followers.contains(&(7, 750.0)),
            "{length}: {followers:?}"
        );
        assert!(followers.is_sorted_by_key(|(token, _)| *token));
    }
}

#[test]
fn unassigned_visits_go_to_the_shorter_context() {
    let mut learner = NgramLearner::new(&vocabulary());
    learner.learn(&[1], &[(2, 0.25)]);
    learner.learn(&[3], &[(4, 1.0)]);
    let prediction = learner.table().prediction(&[1]);
    let shorter = (2.0 - 1.25 + PRIOR_WEIGHT) / (1.0 + PRIOR_WEIGHT);
    assert!(shorter > 0.8);
    near(
        &prediction,
        &[
            (2, (0.25 + (0.75 + PRIOR_WEIGHT) * 0.125) / (1.0 + PRIOR_WEIGHT)),
            (4, (0.75 + PRIOR_WEIGHT) * 0.5 / (1.0 + PRIOR_WEIGHT)),
        ],
    );
}

#[test]
fn table_round_trips_and_continues_learning() {
    let mut learner = learner();
    let table = learner.table();
    assert_eq!(NgramTable::from_bytes(&table.to_bytes()).unwrap(), table);
    assert_eq!((table.learned(), table.contexts()), (4, 1 + 1 + 2));
    let mut again = NgramLearner::from_table(&table, &vocabulary()).unwrap();
    assert_eq!(again.table(), table);
    for learner in [&mut learner, &mut again] {
        learner.learn(&[7, 1], &[(2, 1.0)]);
    }
    near(&again.table().prediction(&[7, 1]), &learner.table().prediction(&[7, 1]));
    assert!(NgramLearner::from_table(&table, &Vocabulary::numbered(11)).is_err());
}

/// The reported overlap is the acceptance rate of a draft from the prediction.
#[test]
fn overlap_matches_the_prediction() {
    let learner = learner();
    let p = [(2, 0.5), (3, 0.5)];
    let prediction = learner.table().prediction(&[7, 1]);
    let expected: f64 = p
        .iter()
        .map(|(token, p)| prediction.iter().find(|(q, _)| q == token).unwrap().1.min(f64::from(*p)))
        .sum();
    assert!((learner.overlap(&[7, 1], &p) - expected).abs() < 1e-4);
    assert_eq!(NgramLearner::new(&vocabulary()).overlap(&[7, 1], &p), 0.0);
}

/// Truncated, or with any byte changed: rejected, or a table with valid predictions.
#[test]
fn damaged_files_are_rejected_or_predict_valid_distributions() {
    let bytes = learner().table().to_bytes();
    for length in 0..bytes.len() {
        let error = NgramTable::from_bytes(&bytes[..length]).unwrap_err().to_string();
        assert!(error.contains("polydraft learn"), "{length}: {error}");
    }
    assert!(NgramTable::from_bytes(&[&bytes[..], b"1"].concat()).is_err());
    let mut accepted = 0;
    for offset in 0..bytes.len() {
        for change in [1, 0x80, 0xff] {
            let mut other = bytes.clone();
            other[offset] ^= change;
            let Ok(table) = NgramTable::from_bytes(&other) else { continue };
            accepted += 1;
            for before in [&[][..], &[1], &[5, 1], &[7, 1]] {
                let prediction = table.prediction(before);
                assert!(prediction.is_sorted_by_key(|(token, _)| *token), "{offset}");
                assert!(prediction.iter().all(|(_, p)| p.is_finite() && *p > 0.0), "{offset}");
            }
        }
    }
    assert!(accepted > 0);
}

#[test]
fn rejects_table_of_another_vocabulary() {
    let vocabulary =
        |words: [&str; 2]| Vocabulary::new(words.map(|word| Some(word.into())).to_vec());
    let table = NgramLearner::new(&vocabulary(["a", "b"])).table();
    assert!(table.check(&vocabulary(["a", "b"])).is_ok());
    for other in [vocabulary(["a", "c"]), vocabulary(["ab", ""]), Vocabulary::numbered(2)] {
        let error = table.check(&other).unwrap_err().to_string();
        assert!(error.contains("a different vocabulary"), "{error}");
    }
}
