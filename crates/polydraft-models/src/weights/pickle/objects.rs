//! What a pickle says, as plain objects: nothing of what it asks to be called is.
//!
//! Source: Python's pickletools; of protocol 2, which PyTorch writes, what checkpoints use.
//!
//! Objects stand in one list and name each other by their places there. What is mentioned again is
//! not copied, and nothing is taken apart one inside the other: time and memory are in proportion
//! to the pickle's length, whatever it says.

use std::collections::HashMap;

/// Where an object stands.
pub type Place = usize;

/// Result with what is wrong.
pub type Read<T> = Result<T, String>;

pub enum Object<'a> {
    Text(&'a str),
    /// Its name, without its module's.
    Class(&'a str),
    Whole(i64),
    Tuple(Vec<Place>),
    List(Vec<Place>),
    Dict(Vec<[Place; 2]>),
    /// What a class would make of a tuple.
    Call {
        class: Place,
        arguments: Place,
    },
    /// What lies outside of the pickle, and where.
    Outside(Place),
    /// What no tensor is made of.
    Other,
}

/// All objects of a pickle.
pub struct Objects<'a> {
    all: Vec<Object<'a>>,
    /// What the pickle is of.
    pub root: Place,
}

impl<'a> Objects<'a> {
    pub fn read(pickle: &'a [u8]) -> Read<Self> {
        let mut reader = Reader { left: pickle, ..Reader::default() };
        while reader.step()? {}
        let root = reader.pop()?;
        Ok(Self { all: reader.all, root })
    }

    pub fn get(&self, place: Place) -> &Object<'a> {
        &self.all[place]
    }

    /// The class and the arguments of a call.
    pub fn call(&self, place: Place) -> Option<(&'a str, &[Place])> {
        let Object::Call { class, arguments } = self.get(place) else { return None };
        match (self.get(*class), self.get(*arguments)) {
            (Object::Class(class), Object::Tuple(arguments)) => Some((class, arguments)),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Reader<'a> {
    left: &'a [u8],
    all: Vec<Object<'a>>,
    stack: Vec<Place>,
    /// How high the stack was.
    marks: Vec<usize>,
    memo: HashMap<u32, Place>,
}

impl<'a> Reader<'a> {
    /// One operation, by its code in pickletools; whether another one follows.
    fn step(&mut self) -> Read<bool> {
        match self.byte()? {
            b'.' => return Ok(false),
            // PROTO
            0x80 => drop(self.byte()?),
            b'(' => self.marks.push(self.stack.len()),
            // NONE, NEWTRUE, NEWFALSE
            b'N' | 0x88 | 0x89 => self.push(Object::Other),
            b'G' => {
                self.array::<8>()?;
                self.push(Object::Other);
            }
            b'K' => {
                let value = self.byte()?;
                self.push(Object::Whole(value.into()));
            }
            b'M' => {
                let value = u16::from_le_bytes(self.array()?);
                self.push(Object::Whole(value.into()));
            }
            b'J' => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(Object::Whole(value.into()));
            }
            // LONG1
            0x8a => {
                let length = self.byte()?;
                let value = self.bytes(length.into())?;
                self.push(long(value));
            }
            b'X' => {
                let length = self.place()?;
                let value = text(self.bytes(length as usize)?)?;
                self.push(Object::Text(value));
            }
            b'c' => {
                self.line()?;
                let class = self.line()?;
                self.push(Object::Class(class));
            }
            b')' => self.push(Object::Tuple(Vec::new())),
            b't' => {
                let parts = self.pop_to_mark()?;
                self.push(Object::Tuple(parts));
            }
            // TUPLE1, TUPLE2, TUPLE3
            count @ 0x85..=0x87 => {
                let parts = self.pop_from(self.stack.len().checked_sub((count - 0x84).into()))?;
                self.push(Object::Tuple(parts));
            }
            b']' => self.push(Object::List(Vec::new())),
            b'a' => {
                let value = self.pop()?;
                self.append(vec![value])?;
            }
            b'e' => {
                let values = self.pop_to_mark()?;
                self.append(values)?;
            }
            b'}' => self.push(Object::Dict(Vec::new())),
            b's' => {
                let entry = self.pop_from(self.stack.len().checked_sub(2))?;
                self.set(&entry)?;
            }
            b'u' => {
                let entries = self.pop_to_mark()?;
                self.set(&entries)?;
            }
            // REDUCE, NEWOBJ
            b'R' | 0x81 => self.call()?,
            // BUILD: what else an object would be told.
            b'b' => drop(self.pop()?),
            b'Q' => {
                let place = self.pop()?;
                self.push(Object::Outside(place));
            }
            b'q' => {
                let number = self.byte()?;
                self.remember(number.into())?;
            }
            b'r' => {
                let number = self.place()?;
                self.remember(number)?;
            }
            b'h' => {
                let number = self.byte()?;
                self.recall(number.into())?;
            }
            b'j' => {
                let number = self.place()?;
                self.recall(number)?;
            }
            other => {
                return Err(format!("expected an operation that PyTorch writes, got {other:#04x}"));
            }
        }
        Ok(true)
    }

    fn byte(&mut self) -> Read<u8> {
        self.array().map(|[byte]| byte)
    }

    /// A length, or a number in the memo.
    fn place(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (array, left) = self.left.split_first_chunk().ok_or_else(cut)?;
        self.left = left;
        Ok(*array)
    }

    fn bytes(&mut self, count: usize) -> Read<&'a [u8]> {
        let (bytes, left) = self.left.split_at_checked(count).ok_or_else(cut)?;
        self.left = left;
        Ok(bytes)
    }

    fn line(&mut self) -> Read<&'a str> {
        let length = self.left.iter().position(|byte| *byte == b'\n').ok_or_else(cut)?;
        let line = text(self.bytes(length)?)?;
        self.byte()?;
        Ok(line)
    }

    fn push(&mut self, object: Object<'a>) {
        self.stack.push(self.all.len());
        self.all.push(object);
    }

    fn pop(&mut self) -> Read<Place> {
        self.stack.pop().ok_or_else(missing)
    }

    fn pop_to_mark(&mut self) -> Read<Vec<Place>> {
        let height = self.marks.pop();
        self.pop_from(height)
    }

    /// What is on the stack from a height on.
    fn pop_from(&mut self, height: Option<usize>) -> Read<Vec<Place>> {
        let height = height.filter(|height| *height <= self.stack.len()).ok_or_else(missing)?;
        Ok(self.stack.split_off(height))
    }

    fn top(&mut self) -> Read<&mut Object<'a>> {
        let place = *self.stack.last().ok_or_else(missing)?;
        Ok(&mut self.all[place])
    }

    fn append(&mut self, mut values: Vec<Place>) -> Read<()> {
        match self.top()? {
            Object::List(list) => list.append(&mut values),
            _ => return Err("expected a list to append to, got something else".to_owned()),
        }
        Ok(())
    }

    /// Pairs of a dictionary: each key, then its value.
    fn set(&mut self, entries: &[Place]) -> Read<()> {
        match (self.top()?, entries.as_chunks()) {
            (Object::Dict(dict), (entries, [])) => dict.extend(entries),
            _ => return Err("expected a dictionary, and keys with a value each".to_owned()),
        }
        Ok(())
    }

    fn call(&mut self) -> Read<()> {
        let (arguments, class) = (self.pop()?, self.pop()?);
        self.push(match self.all[class] {
            Object::Class("OrderedDict" | "defaultdict") => Object::Dict(Vec::new()),
            _ => Object::Call { class, arguments },
        });
        Ok(())
    }

    fn remember(&mut self, number: u32) -> Read<()> {
        let place = *self.stack.last().ok_or_else(missing)?;
        self.memo.insert(number, place);
        Ok(())
    }

    fn recall(&mut self, number: u32) -> Read<()> {
        let place = self.memo.get(&number);
        self.stack.push(
            *place
                .ok_or_else(|| format!("expected object {number} before it is used, got none"))?,
        );
        Ok(())
    }
}

fn cut() -> String {
    "expected more, got its end".to_owned()
}

fn missing() -> String {
    "expected an operation after its operands, got it before".to_owned()
}

fn text(bytes: &[u8]) -> Read<&str> {
    std::str::from_utf8(bytes).map_err(|e| format!("expected a text: {e}"))
}

/// A number of as many bytes as it needs, the lowest first, the highest with the sign.
fn long<'a>(bytes: &[u8]) -> Object<'a> {
    let sign = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
    let mut wide = [sign; 8];
    match wide.get_mut(..bytes.len()) {
        Some(low) => low.copy_from_slice(bytes),
        None => return Object::Other,
    }
    Object::Whole(i64::from_le_bytes(wide))
}
