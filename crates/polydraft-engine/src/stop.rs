//! Stop strings in a stream of text chunks.

use std::collections::VecDeque;

use crate::request::Span;

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
    /// Text in which stop strings do not count, and where the scan is.
    span: Option<(Span, Place)>,
}

/// Place of a scan beside the span without stop strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the start of the text, where the span may begin.
    Before,
    Inside,
}

impl<M: Copy> StopScanner<M> {
    /// Creates a scanner; empty stop strings are ignored.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, withheld: VecDeque::new(), span: None }
    }

    /// Ignores stop strings in this span of the text.
    pub fn outside(self, span: Option<&Span>) -> Self {
        let place = |span: &Span| if span.is_open { Place::Inside } else { Place::Before };
        let span = span.filter(|_| !self.stops.is_empty());
        Self { span: span.map(|span| (span.clone(), place(span))), ..self }
    }

    /// Takes a chunk; returns the released text and whether a stop string was completed. The text
    /// then ends where the stop string begins. Of several stop strings, the one that begins first
    /// counts.
    pub fn push(&mut self, text: &str, mark: M) -> (MarkedText<M>, bool) {
        if !text.is_empty() {
            self.withheld.push_back((text.to_owned(), mark));
        }
        let mut skipped = Vec::new();
        if !self.skip_span(&mut skipped) {
            return (skipped, false);
        }
        let (released, stopped) = self.scan();
        skipped.extend(released);
        (skipped, stopped)
    }

    /// Releases the text of the span. Returns whether the scan is past it.
    fn skip_span(&mut self, released: &mut MarkedText<M>) -> bool {
        while let Some((span, place)) = self.span.clone() {
            let withheld = self.text();
            let (length, next) = match place {
                Place::Before => {
                    let text = withheld.trim_start();
                    let start = withheld.len() - text.len();
                    match text.starts_with(&span.opening) {
                        true => (start + span.opening.len(), Some(Place::Inside)),
                        false if span.opening.starts_with(text) => return false,
                        false => (0, None),
                    }
                }
                Place::Inside => match withheld.find(&span.closing) {
                    Some(at) => (at + span.closing.len(), None),
                    None => {
                        let begins = |start: &usize| span.closing.starts_with(&withheld[*start..]);
                        let starts = withheld.char_indices().map(|(start, _)| start);
                        let length = starts.into_iter().find(begins).unwrap_or(withheld.len());
                        released.extend(self.release(length));
                        return false;
                    }
                },
            };
            released.extend(self.release(length));
            self.span = next.map(|place| (span, place));
        }
        true
    }

    fn text(&self) -> String {
        self.withheld.iter().map(|(text, _)| text.as_str()).collect()
    }

    fn scan(&mut self) -> (MarkedText<M>, bool) {
        let withheld = self.text();
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
    fn ignores_stop_strings_in_the_span() {
        for (is_open, text, expected, stops) in [
            (true, "a END b</t>c END", "a END b</t>c ", true),
            (false, " <t>a END</t>c END", " <t>a END</t>c ", true),
            (false, "a END</t>", "a ", true),
            (false, "<tEND", "<t", true),
            (true, "a END", "a END", false),
            (false, "<t", "<t", false),
        ] {
            let span = Span { opening: "<t>".to_owned(), closing: "</t>".to_owned(), is_open };
            for (cut, _) in text.char_indices() {
                let mut scanner = StopScanner::new(&["END".to_owned()]).outside(Some(&span));
                let (mut released, mut stopped) = (String::new(), false);
                for chunk in [&text[..cut], &text[cut..]] {
                    let (out, now) = scanner.push(chunk, ());
                    released.extend(out.into_iter().map(|(text, ())| text));
                    stopped |= now;
                    if stopped {
                        break;
                    }
                }
                released.extend(scanner.finish().into_iter().map(|(text, ())| text));
                assert_eq!((released.as_str(), stopped), (expected, stops), "{text} at {cut}");
            }
        }
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
