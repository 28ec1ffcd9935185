//! Stop strings in a stream of text chunks.

use std::collections::VecDeque;

/// Released text: chunks with their marks.
pub type MarkedText<M> = Vec<(String, M)>;

/// Releases text until one of the stop strings appears, which may span chunks.
///
/// Text that may be the beginning of a stop string is withheld until that is decided. Each chunk
/// keeps its mark.
#[derive(Debug, Clone)]
pub struct StopScanner<M> {
    stops: Vec<String>,
    withheld: VecDeque<(String, M)>,
}

impl<M: Copy> StopScanner<M> {
    /// Creates a scanner; empty stop strings are ignored.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, withheld: VecDeque::new() }
    }

    /// Takes a chunk; returns the released text and whether a stop string was completed. The text
    /// then ends where the stop string begins. Of several stop strings, the one that begins first
    /// counts.
    pub fn push(&mut self, text: &str, mark: M) -> (MarkedText<M>, bool) {
        if !text.is_empty() {
            self.withheld.push_back((text.to_owned(), mark));
        }
        let withheld: String = self.withheld.iter().map(|(text, _)| text.as_str()).collect();
        let found = self.stops.iter().filter_map(|stop| withheld.find(stop.as_str())).min();
        if let Some(start) = found {
            let released = self.release(start);
            self.withheld.clear();
            return (released, true);
        }
        let undecided = withheld
            .char_indices()
            .map(|(start, _)| start)
            .find(|&start| self.stops.iter().any(|stop| stop.starts_with(&withheld[start..])))
            .unwrap_or(withheld.len());
        (self.release(undecided), false)
    }

    /// Returns the withheld text, at the end of the sequence.
    pub fn finish(&mut self) -> MarkedText<M> {
        self.withheld.drain(..).collect()
    }

    /// Releases the first `bytes` of the withheld text.
    fn release(&mut self, mut bytes: usize) -> MarkedText<M> {
        let mut released = Vec::new();
        while bytes > 0 {
            let Some((text, mark)) = self.withheld.pop_front() else { break };
            if text.len() > bytes {
                let (now, later) = text.split_at(bytes);
                released.push((now.to_owned(), mark));
                self.withheld.push_front((later.to_owned(), mark));
                break;
            }
            bytes -= text.len();
            released.push((text, mark));
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes the chunks; returns the text released after each, and whether a stop string was
    /// completed.
    fn run(stops: &[&str], chunks: &[&str]) -> (Vec<String>, bool) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut scanner = StopScanner::new(&stops);
        let text = |chunks: MarkedText<()>| chunks.into_iter().map(|(t, ())| t).collect::<String>();
        let mut released = Vec::new();
        for chunk in chunks {
            let (out, stopped) = scanner.push(chunk, ());
            released.push(text(out));
            if stopped {
                return (released, true);
            }
        }
        released.push(text(scanner.finish()));
        (released, false)
    }

    #[test]
    fn releases_everything_without_stop_strings() {
        assert_eq!(
            run(&[], &["a", "", "b"]),
            (vec!["a".into(), "".into(), "b".into(), "".into()], false)
        );
        assert_eq!(run(&[""], &["a"]), (vec!["a".into(), "".into()], false));
    }

    #[test]
    fn finds_stop_strings_across_chunks() {
        assert_eq!(
            run(&["END"], &["xE", "N", "Dy"]),
            (vec!["x".into(), "".into(), "".into()], true)
        );
        assert_eq!(
            run(&["END"], &["xE", "NT"]),
            (vec!["x".into(), "ENT".into(), "".into()], false)
        );
        assert_eq!(run(&["END"], &["xEN"]), (vec!["x".into(), "EN".into()], false));
        // A partial match may overlap the real one.
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]).0, ["", "", "a", ""]);
        assert_eq!(run(&["é!"], &["é", "é", "!"]).0, ["", "é", ""]);
    }

    #[test]
    fn earliest_stop_string_wins() {
        assert_eq!(run(&["bc", "ab"], &["xabc"]), (vec!["x".into()], true));
    }

    #[test]
    fn same_result_for_any_chunking() {
        let text = "one two threé two four";
        let expected = "one two threé";
        let ends: Vec<usize> = text.char_indices().map(|(i, _)| i).chain([text.len()]).collect();
        for &a in &ends {
            for &b in ends.iter().filter(|b| **b >= a) {
                let (released, stopped) =
                    run(&[" two four", "zzz"], &[&text[..a], &text[a..b], &text[b..]]);
                assert_eq!((released.concat().as_str(), stopped), (expected, true), "{a} {b}");
            }
        }
    }
}
