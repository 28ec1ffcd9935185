//! What a chat template may do while it runs: bytes written, and bytes gone through; operators,
//! filters and methods that can make much of little (operators by way of
//! [`measured`](super::measured)); time. Its operations are counted too (fuel):
//! [`scan`](super::scan) says how many it may take.

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Output, State, functions};

use super::measured;

/// Bytes that a run may write, and besides that 16 times what the messages hold.
const LONGEST_TEXT: usize = 4 << 20;
/// Characters that a format or an indentation may fill up to.
const WIDEST: usize = 10_000;
/// How often a product may repeat a string or a list.
const REPEATED: usize = 1_000;
/// Levels of lists and objects inside each other.
const DEEPEST_VALUE: usize = 100;
/// What looking at values, part by part, may cost a run.
const WORK: usize = 5_000_000;
/// Bytes that filters may go through, and besides that 64 times what the messages hold.
const MOST_FILTERED: usize = 64 << 20;
/// No conversation takes so long, on any machine.
const LONGEST_TIME: Duration = Duration::from_secs(5);

pub(super) fn refused(problem: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

thread_local! {
    /// Bytes that the template of this thread may still make.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Bytes that filters may still go through.
    static FILTERED_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// When it is to be done.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Whether a product had a number above [`REPEATED`], and whether one had a string or a list.
    static FACTORS: Cell<(bool, bool)> = const { Cell::new((false, false)) };
    /// Parts of values that it may still look at.
    static WORK_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// That the template is not at it for too long.
fn in_time() -> Result<(), Error> {
    match DEADLINE.get() {
        Some(deadline) if Instant::now() > deadline => Err(refused(format!(
            "expected a template that is done within {} seconds",
            LONGEST_TIME.as_secs()
        ))),
        _ => Ok(()),
    }
}

/// A sum of lists as one list: the library keeps sums of sums, and 2^n empty ones have nothing in
/// them that could be counted.
fn flat(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Iterable => Ok(Value::from(value.try_iter()?.collect::<Vec<_>>())),
        _ => Ok(value),
    }
}

/// What gets a name: no lists of lists that are still to be made.
fn kept(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    in_time()?;
    let value = flat(value)?;
    work(value.len().unwrap_or(0))?;
    Ok(value)
}

/// What goes into a filter, or becomes a part of something.
fn held(value: Value) -> Result<Value, Error> {
    filtered(&value)?;
    flat(value)
}

/// Takes looks at parts of values from those that are left.
fn work(parts: usize) -> Result<(), Error> {
    let left = WORK_LEFT.get().checked_sub(parts).ok_or_else(|| {
        refused(
            "expected a template that does less with lists: this one would never end".to_owned(),
        )
    })?;
    WORK_LEFT.set(left);
    Ok(())
}

/// Takes what goes into a filter from what filters may still go through.
fn filtered(value: &Value) -> Result<(), Error> {
    in_time()?;
    let left = FILTERED_LEFT.get().checked_sub(weigh(value, 0)?);
    FILTERED_LEFT.set(left.ok_or_else(|| {
        refused(
            "expected a template that does less with strings: this one would never end".to_owned(),
        )
    })?);
    Ok(())
}

/// Bytes that a value takes as text, of all that is in it; its parts are paid for as work.
fn weigh(value: &Value, depth: usize) -> Result<usize, Error> {
    work(1)?;
    if depth > DEEPEST_VALUE {
        return Err(refused(format!(
            "expected at most {DEEPEST_VALUE} lists inside each other, got more"
        )));
    }
    if let Some(text) = value.as_str() {
        return Ok(text.len() + 2);
    }
    match value.kind() {
        ValueKind::Map => value.try_iter()?.try_fold(2, |sum: usize, key| {
            let item = weigh(&value.get_item(&key)?, depth + 1)?;
            Ok(sum.saturating_add(weigh(&key, depth + 1)?).saturating_add(item).saturating_add(4))
        }),
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter()?.try_fold(2, |sum: usize, item| {
                Ok(sum.saturating_add(weigh(&item, depth + 1)?).saturating_add(2))
            })
        }
        _ => Ok(32),
    }
}

/// Takes bytes from what the template of this thread may still make.
pub(super) fn spend(bytes: usize) -> Result<(), Error> {
    match LEFT.get().checked_sub(bytes) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => Err(refused(
            "expected less text than this template makes: it is longer than any prompt".to_owned(),
        )),
    }
}

/// Runs a template on messages of so many bytes, with a bound on what it makes.
pub(super) fn bounded(
    given: usize,
    run: impl FnOnce(&mut Bounded) -> Result<(), Error>,
) -> Result<String, Error> {
    let most = LONGEST_TEXT.saturating_add(given.saturating_mul(16));
    let outer = (LEFT.replace(most), WORK_LEFT.replace(WORK));
    FACTORS.set((false, false));
    FILTERED_LEFT.set(MOST_FILTERED.saturating_add(given.saturating_mul(64)));
    DEADLINE.set(Some(Instant::now() + LONGEST_TIME));
    let mut text = Bounded { text: Vec::new(), most };
    let result = run(&mut text);
    LEFT.set(outer.0);
    WORK_LEFT.set(outer.1);
    match result {
        Ok(()) => Ok(String::from_utf8_lossy(&text.text).into_owned()),
        Err(_) if text.most == 0 => {
            Err(refused(format!("expected a text of at most {most} bytes, got more")))
        }
        Err(e) => Err(e),
    }
}

/// What a template writes, up to so many bytes.
pub(super) struct Bounded {
    text: Vec<u8>,
    /// 0 once it was too much.
    most: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.most {
            self.most = 0;
            return Err(io::Error::other("too much text"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Puts bounds on filters, methods and values that can make much of little.
pub(super) fn install(environment: &mut Environment) {
    environment.set_formatter(|out: &mut Output, state: &mut State, value: &Value| {
        // Also where what is written is captured, which no writer sees.
        spend(weigh(value, 0)?)?;
        minijinja::escape_formatter(out, state, value)
    });
    environment.add_filter(measured::SPENT, |value: Value| {
        spend(weigh(&value, 0)?)?;
        flat(value)
    });
    environment.add_function(measured::TICK, || in_time().map(|()| false));
    for name in [measured::MADE, measured::BUILT, measured::HELD] {
        environment.add_filter(name, held);
    }
    environment.add_filter(measured::SEEN, |value: Value| in_time().map(|()| value));
    environment.add_filter(measured::KEPT, kept);
    environment.add_function("dict", |value: Option<Value>, parts: Kwargs| {
        held(functions::dict(value, parts)?)
    });
    environment.add_function("namespace", |parts: Option<ValueOrKwargs>| {
        held(functions::namespace(parts)?)
    });
    // Python's Jinja has neither, and what they make is as deep as somebody likes.
    environment.remove_filter("chain");
    environment.remove_filter("zip");
    environment.add_filter(measured::FACTOR, |value: Value| {
        let (mut large, mut text) = FACTORS.get();
        match value.kind() {
            ValueKind::Number => large |= value.as_usize().is_some_and(|n| n > REPEATED),
            _ => {
                text = true;
                spend(weigh(&value, 0)?.saturating_mul(REPEATED))?;
            }
        }
        FACTORS.set((large, text));
        if large && text {
            return Err(refused(format!(
                "expected a string or a list repeated at most {REPEATED} times, got more"
            )));
        }
        flat(value)
    });
    environment.set_unknown_method_callback(|state, value, method, args| {
        filtered(value)?;
        match (method, args.first()) {
            // The other way round than the filter.
            ("join", Some(items)) => check_call(method, items, std::slice::from_ref(value))?,
            ("format", _) => {
                let text = value.as_str().unwrap_or_default();
                check_formats(text, &braced(text), args)?;
            }
            _ => check_call(method, value, args)?,
        }
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
    });
    // The library's own are kept under names that no template can write.
    environment.add_filter("library's replace", minijinja::filters::replace);
    environment.add_filter("library's format", minijinja::filters::format);
    environment.add_filter("library's indent", minijinja::filters::indent);
    environment.add_filter("library's join", minijinja::filters::join);
    environment.add_filter("library's batch", minijinja::filters::batch);
    environment.add_filter("library's slice", minijinja::filters::slice);
    for (name, own) in [
        ("replace", "library's replace"),
        ("format", "library's format"),
        ("indent", "library's indent"),
        ("join", "library's join"),
        ("batch", "library's batch"),
        ("slice", "library's slice"),
    ] {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            if let Some((value, rest)) = args.split_first() {
                check_call(name, value, rest)?;
            }
            state.apply_filter(own, &args)
        });
    }
}

/// That a filter makes no more than there is room for.
fn check_call(name: &str, value: &Value, args: &[Value]) -> Result<(), Error> {
    let text = value.as_str().unwrap_or_default();
    match name {
        "replace" => {
            // A list or a number goes in as it is written.
            let written =
                |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let [from, to] = [0, 1].map(|i| args.get(i).map(written).unwrap_or_default());
            let text = written(value);
            spend(text.len().saturating_add(text.matches(&from).count().saturating_mul(to.len())))
        }
        "join" => {
            // Also where it is named: `join(d=', ')`.
            let between = value.len().unwrap_or(0).saturating_mul(longest(args)?);
            spend(weigh(value, 0)?.saturating_add(between))
        }
        // So many lists, or so many items of the last one.
        "batch" | "slice" => {
            spend(args.first().and_then(Value::as_usize).unwrap_or(0).saturating_mul(32))
        }
        "indent" => {
            let width = |v: &Value| v.as_usize().or_else(|| v.get_attr("width").ok()?.as_usize());
            let width = args.iter().filter_map(width).max().unwrap_or(4);
            widest(width)?;
            spend((width + 1).saturating_mul(1 + text.matches('\n').count()))
        }
        "format" => check_formats(text, &percents(text), args),
        _ => Ok(()),
    }
}

/// The formats of a text's fields, as the library finds them: `split` takes that of a field apart
/// from what follows it.
fn formats<'a>(
    text: &'a str,
    mark: char,
    split: impl Fn(&'a str) -> (&'a str, &'a str),
) -> Vec<&'a str> {
    let (mut formats, mut rest) = (Vec::new(), text);
    while let Some((_, field)) = rest.split_once(mark) {
        rest = field.strip_prefix(mark).unwrap_or_else(|| {
            let (format, behind) = split(field);
            formats.push(format);
            behind
        });
    }
    formats
}

/// Of `%(name)5d` the `5`; what is in brackets may say anything.
fn percents(text: &str) -> Vec<&str> {
    formats(text, '%', |field| {
        let named = field.strip_prefix('(');
        let format = named.map_or(field, |name| name.split_once(')').unwrap_or_default().1);
        let end = format.find(|c: char| !c.is_ascii_digit() && !"#-+ .*".contains(c));
        format.split_at(end.unwrap_or(format.len()))
    })
}

/// Of `{name[key]:*>5}` the `5`; what is in brackets and the fill may say anything.
fn braced(text: &str) -> Vec<&str> {
    formats(text, '{', |field| {
        let mut name = field;
        let format = loop {
            let end = name.find(['[', ':', '}']).unwrap_or(name.len());
            match name[end..].strip_prefix('[') {
                Some(key) => name = key.split_once(']').unwrap_or_default().1,
                None => break &name[end..],
            }
        };
        let format = format.strip_prefix(':').map_or(format, |format| {
            let mut behind = format.chars();
            let aligned = behind.nth(1).is_some_and(|align| "<>^".contains(align));
            if aligned { behind.as_str() } else { format }
        });
        format.split_at(format.find('}').unwrap_or(format.len()))
    })
}

/// Bytes of the argument that takes most; those that are given by name are one.
fn longest(args: &[Value]) -> Result<usize, Error> {
    args.iter().try_fold(0, |longest, arg| weigh(arg, 0).map(|bytes| bytes.max(longest)))
}

/// That widths and precisions are numbers, and no large ones; and that there is room for the
/// longest argument at each field.
fn check_formats(text: &str, formats: &[&str], args: &[Value]) -> Result<(), Error> {
    if formats.iter().any(|format| format.contains(['*', '{'])) {
        return Err(refused(format!("format: expected widths as numbers, got {text:?}")));
    }
    let mut total = text.len().saturating_add(formats.len().saturating_mul(longest(args)?));
    let digits = formats.iter().flat_map(|format| format.split(|c: char| !c.is_ascii_digit()));
    for width in digits
        .filter(|digits| !digits.is_empty())
        .map(|digits| digits.parse().unwrap_or(usize::MAX))
    {
        widest(width)?;
        total = total.saturating_add(width);
    }
    spend(total)
}

pub(super) fn widest(width: usize) -> Result<(), Error> {
    if width > WIDEST {
        return Err(refused(format!("expected a width of at most {WIDEST}, got {width}")));
    }
    Ok(())
}
