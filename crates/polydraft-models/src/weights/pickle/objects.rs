//! Parses a pickle into plain objects, without calling anything that it names.
//!
//! Source: Python's pickletools; of protocol 2, which PyTorch writes, the operations that
//! checkpoints use.
//!
//! Objects are in one list and refer to each other by their indices there. Objects that are
//! referred to again are not copied, and nesting does not recurse: time and memory are proportional
//! to the pickle's length, whatever its content.

use std::collections::HashMap;

/// Index of an object.
pub type ObjectId = usize;

/// Result with a description of the problem.
pub type ReadResult<T> = Result<T, String>;

/// Object of a pickle.
pub enum Object<'a> {
    Str(&'a str),
    /// Name of a class, without its module.
    Class(&'a str),
    Integer(i64),
    Tuple(Vec<ObjectId>),
    List(Vec<ObjectId>),
    Dict(Vec<[ObjectId; 2]>),
    /// Call of a class with a tuple of arguments.
    Call {
        class: ObjectId,
        arguments: ObjectId,
    },
    /// Persistent identifier of an object outside the pickle.
    Persistent(ObjectId),
    /// Any object that tensors do not need.
    Other,
}

/// All objects of a pickle.
pub struct Objects<'a> {
    all: Vec<Object<'a>>,
    /// Outermost object.
    pub root: ObjectId,
}

impl<'a> Objects<'a> {
    /// Parses a pickle.
    pub fn read(pickle: &'a [u8]) -> ReadResult<Self> {
        let mut reader = Reader { left: pickle, ..Reader::default() };
        while reader.step()? {}
        let root = reader.pop()?;
        Ok(Self { all: reader.all, root })
    }

    pub fn get(&self, id: ObjectId) -> &Object<'a> {
        &self.all[id]
    }

    /// Class and arguments of a call.
    pub fn call(&self, id: ObjectId) -> Option<(&'a str, &[ObjectId])> {
        let Object::Call { class, arguments } = self.get(id) else { return None };
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
    stack: Vec<ObjectId>,
    /// Stack heights at the marks.
    marks: Vec<usize>,
    memo: HashMap<u32, ObjectId>,
}

impl<'a> Reader<'a> {
    /// Executes one operation, by its code in pickletools; returns whether another one follows.
    fn step(&mut self) -> ReadResult<bool> {
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
                self.push(Object::Integer(value.into()));
            }
            b'M' => {
                let value = u16::from_le_bytes(self.array()?);
                self.push(Object::Integer(value.into()));
            }
            b'J' => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(Object::Integer(value.into()));
            }
            // LONG1
            0x8a => {
                let length = self.byte()?;
                let value = self.bytes(length.into())?;
                self.push(long(value));
            }
            b'X' => {
                let length = self.u32()?;
                let value = utf8(self.bytes(length as usize)?)?;
                self.push(Object::Str(value));
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
            // BUILD: the state of an object is not needed.
            b'b' => drop(self.pop()?),
            b'Q' => {
                let id = self.pop()?;
                self.push(Object::Persistent(id));
            }
            b'q' => {
                let number = self.byte()?;
                self.memoize(number.into())?;
            }
            b'r' => {
                let number = self.u32()?;
                self.memoize(number)?;
            }
            b'h' => {
                let number = self.byte()?;
                self.push_memoized(number.into())?;
            }
            b'j' => {
                let number = self.u32()?;
                self.push_memoized(number)?;
            }
            other => {
                return Err(format!("expected an operation that PyTorch writes, got {other:#04x}"));
            }
        }
        Ok(true)
    }

    fn byte(&mut self) -> ReadResult<u8> {
        self.array().map(|[byte]| byte)
    }

    /// Reads a length, or an index of the memo.
    fn u32(&mut self) -> ReadResult<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn array<const N: usize>(&mut self) -> ReadResult<[u8; N]> {
        let (array, left) = self.left.split_first_chunk().ok_or_else(unexpected_end)?;
        self.left = left;
        Ok(*array)
    }

    fn bytes(&mut self, count: usize) -> ReadResult<&'a [u8]> {
        let (bytes, left) = self.left.split_at_checked(count).ok_or_else(unexpected_end)?;
        self.left = left;
        Ok(bytes)
    }

    fn line(&mut self) -> ReadResult<&'a str> {
        let length = self.left.iter().position(|byte| *byte == b'\n').ok_or_else(unexpected_end)?;
        let line = utf8(self.bytes(length)?)?;
        self.byte()?;
        Ok(line)
    }

    fn push(&mut self, object: Object<'a>) {
        self.stack.push(self.all.len());
        self.all.push(object);
    }

    fn pop(&mut self) -> ReadResult<ObjectId> {
        self.stack.pop().ok_or_else(missing_operand)
    }

    fn pop_to_mark(&mut self) -> ReadResult<Vec<ObjectId>> {
        let height = self.marks.pop();
        self.pop_from(height)
    }

    /// Pops everything above a stack height.
    fn pop_from(&mut self, height: Option<usize>) -> ReadResult<Vec<ObjectId>> {
        let height =
            height.filter(|height| *height <= self.stack.len()).ok_or_else(missing_operand)?;
        Ok(self.stack.split_off(height))
    }

    fn top(&mut self) -> ReadResult<&mut Object<'a>> {
        let id = *self.stack.last().ok_or_else(missing_operand)?;
        Ok(&mut self.all[id])
    }

    fn append(&mut self, mut values: Vec<ObjectId>) -> ReadResult<()> {
        match self.top()? {
            Object::List(list) => list.append(&mut values),
            _ => return Err("expected a list to append to, got something else".to_owned()),
        }
        Ok(())
    }

    /// Adds entries to a dictionary: each key, then its value.
    fn set(&mut self, entries: &[ObjectId]) -> ReadResult<()> {
        match (self.top()?, entries.as_chunks()) {
            (Object::Dict(dict), (entries, [])) => dict.extend(entries),
            _ => return Err("expected a dictionary, and keys with a value each".to_owned()),
        }
        Ok(())
    }

    fn call(&mut self) -> ReadResult<()> {
        let (arguments, class) = (self.pop()?, self.pop()?);
        self.push(match self.all[class] {
            Object::Class("OrderedDict" | "defaultdict") => Object::Dict(Vec::new()),
            _ => Object::Call { class, arguments },
        });
        Ok(())
    }

    fn memoize(&mut self, number: u32) -> ReadResult<()> {
        let id = *self.stack.last().ok_or_else(missing_operand)?;
        self.memo.insert(number, id);
        Ok(())
    }

    fn push_memoized(&mut self, number: u32) -> ReadResult<()> {
        let id = self.memo.get(&number);
        self.stack.push(
            *id.ok_or_else(|| format!("expected object {number} before it is used, got none"))?,
        );
        Ok(())
    }
}

fn unexpected_end() -> String {
    "expected more bytes, got the end".to_owned()
}

fn missing_operand() -> String {
    "expected operands before an operation, got none".to_owned()
}

fn utf8(bytes: &[u8]) -> ReadResult<&str> {
    std::str::from_utf8(bytes).map_err(|e| format!("expected UTF-8: {e}"))
}

/// Integer of up to 8 bytes, little-endian, two's complement.
fn long<'a>(bytes: &[u8]) -> Object<'a> {
    let sign = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
    let mut wide = [sign; 8];
    match wide.get_mut(..bytes.len()) {
        Some(low) => low.copy_from_slice(bytes),
        None => return Object::Other,
    }
    Object::Integer(i64::from_le_bytes(wide))
}
