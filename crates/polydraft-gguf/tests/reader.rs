//! Tests of valid and invalid files, and of the errors of the latter.

use std::path::Path;

use crate::support::{ARRAY, BOOL, F32, I32, STRING, U8, U32, Writer, string};
use polydraft_gguf::{Gguf, TensorType, Value};

fn open(writer: &Writer) -> Gguf {
    Gguf::from_bytes("a file", writer.finish()).unwrap_or_else(|e| panic!("{e}"))
}

fn error(bytes: Vec<u8>) -> String {
    Gguf::from_bytes("a file", bytes).expect_err("an invalid file").to_string()
}

/// Asserts that a file is rejected with an error that contains all of `strings`.
fn assert_rejected(writer: &Writer, strings: &[&str]) {
    let error = error(writer.finish());
    for string in ["a file: ", "expected ", ", got "].iter().chain(strings) {
        assert!(error.contains(string), "expected {string:?} in: {error}");
    }
}

fn small() -> Writer {
    Writer::default()
        .str("general.architecture", "llama")
        .u32("a.count", 7)
        .strings("a.words", &["one", "", "zwölf"])
        .f32_tensor("t", &[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
}

#[test]
fn reads_keys_of_every_type() {
    for version in [2, 3] {
        let writer = Writer { version, ..small() }
            .raw("u8", 0, &[200])
            .raw("i8", 1, &[200])
            .raw("u16", 2, &60_000_u16.to_le_bytes())
            .raw("i16", 3, &(-5_i16).to_le_bytes())
            .raw("i32", 5, &(-6_i32).to_le_bytes())
            .f32("f32", 0.5)
            .bool("bool", true)
            .raw("u64", 10, &u64::MAX.to_le_bytes())
            .raw("i64", 11, &i64::MIN.to_le_bytes())
            .raw("f64", 12, &0.1_f64.to_le_bytes())
            .i32s("i32s", &[1, -2])
            .f32s("f32s", &[1.5, -2.5])
            .array("bools", BOOL, &[vec![1], vec![0]])
            .array("u8s", U8, &[vec![3], vec![255]])
            .array("empty", STRING, &[]);
        let gguf = open(&writer);
        let m = gguf.metadata();
        assert_eq!(gguf.version(), version);
        assert_eq!((m.u32("u8").unwrap(), m.i64("i8").unwrap()), (200, -56));
        assert_eq!((m.u32("u16").unwrap(), m.i64("i16").unwrap()), (60_000, -5));
        assert_eq!((m.i64("i32").unwrap(), m.u64("u64").unwrap()), (-6, u64::MAX));
        assert_eq!((m.i64("i64").unwrap(), m.f64("f64").unwrap()), (i64::MIN, 0.1));
        assert_eq!((m.f64("f32").unwrap(), m.bool("bool").unwrap()), (0.5, true));
        assert_eq!(m.strings("a.words").unwrap(), ["one", "", "zwölf"]);
        assert_eq!((m.i32s("i32s").unwrap(), m.i32s("u8s").unwrap()), (vec![1, -2], vec![3, 255]));
        assert_eq!(
            (m.f32s("f32s").unwrap(), m.bools("bools").unwrap()),
            (vec![1.5, -2.5], vec![true, false])
        );
        assert!(m.strings("empty").unwrap().is_empty());
        assert_eq!(m.get("a.count"), Some(Value::Integer(7)));
        assert_eq!(m.optional("a.none", |m, key| m.u32(key)).unwrap(), None);
        assert_eq!(m.iter().count(), 18);
    }
}

#[test]
fn reports_missing_keys_and_wrong_types() {
    let gguf = open(
        &small().raw("bad", STRING, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]).raw("minus", I32, &[0xff; 4]),
    );
    let m = gguf.metadata();
    let cases = [
        (
            m.u32("none").map(drop),
            "key none: expected an integer from 0 to 4294967295, got no such key",
        ),
        (
            m.u32("minus").map(drop),
            "key minus: expected an integer from 0 to 4294967295, got -1 of type i32",
        ),
        (m.str("a.count").map(drop), "key a.count: expected a string in UTF-8, got 7 of type u32"),
        (
            m.str("bad").map(drop),
            "key bad: expected a string in UTF-8, got \"\u{fffd}\" of type string",
        ),
        (m.strings("a.count").map(drop), "key a.count: expected an array, got 7 of type u32"),
        (
            m.i32s("a.words").map(drop),
            "key a.words: expected an array of integers of 32 bits, got \"one\" of type string as \
             number 0",
        ),
        (m.bool("a.words").map(drop), "key a.words: expected a bool, got 3 values of type string"),
        (gguf.tensor("u").map(drop), "tensor u: expected a tensor, got no tensor of that name"),
    ];
    for (result, expected) in cases {
        assert_eq!(result.unwrap_err().to_string(), format!("a file: {expected}"));
    }
}

#[test]
fn reads_tensors_and_checks_shapes_and_rows() {
    let gguf = open(&small());
    let t = gguf.tensor("t").unwrap();
    assert_eq!((t.shape(), t.rows(), t.columns()), (vec![2, 4], 2, 4));
    assert_eq!((t.kind(), t.row_bytes(), t.bytes()), (TensorType::F32, 16, 32));
    assert_eq!(t.dequantize().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let mut row = [0.0; 4];
    t.dequantize_rows(1..2, &mut row).unwrap();
    assert_eq!(row, [5.0, 6.0, 7.0, 8.0]);
    let mut blocks = [0; 16];
    t.read_rows(0..1, &mut blocks).unwrap();
    assert_eq!(blocks[..4], 1.0_f32.to_le_bytes());
    t.expect_shape(&[2, 4]).unwrap();

    // Usable from several threads.
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&gguf);
    shared(&t);

    let e = t.expect_shape(&[4, 2]).unwrap_err().to_string();
    assert_eq!(e, "a file: tensor t: expected shape [4, 2], got shape [2, 4]");
    let e = t.dequantize_rows(1..3, &mut row).unwrap_err().to_string();
    assert_eq!(e, "a file: tensor t: expected rows below 2, got rows 1..3");
    let e = t.dequantize_rows(0..2, &mut row).unwrap_err().to_string();
    assert_eq!(
        e,
        "a file: tensor t: expected a buffer of 8 numbers for rows 0..2, got a buffer of 4"
    );
    #[allow(clippy::reversed_empty_ranges)]
    let e = t.read_rows(2..1, &mut blocks).unwrap_err().to_string();
    assert!(e.contains("rows 2..1"), "{e}");
}

#[test]
fn rejects_unsupported_tensor_types() {
    for (number, name, block, bytes) in
        [(16, "IQ2_XXS", 256, 66), (19, "IQ1_S", 256, 50), (34, "TQ1_0", 256, 54)]
    {
        let gguf = open(&Writer::default().tensor("t", number, &[block], &vec![0; bytes]));
        let e = gguf.tensor("t").unwrap().dequantize().unwrap_err().to_string();
        assert!(e.contains("tensor t") && e.contains(&format!("got type {name}")), "{e}");
    }
    assert_rejected(
        &Writer::default().tensor_entry("t", 4, &[32], 0),
        &["tensor t", "a known type", "Q4_2"],
    );
    assert_rejected(
        &Writer::default().tensor_entry("t", 99, &[32], 0),
        &["tensor t", "type number 99"],
    );
}

#[test]
fn rejects_invalid_headers() {
    assert!(
        error(Vec::new())
            .contains("header: expected 4 more bytes, got a file with 0 left of its 0")
    );
    assert_rejected(&Writer { magic: *b"ggjt", ..small() }, &["header", "GGUF", "ggjt"]);
    assert_rejected(&Writer { version: 1, ..small() }, &["header", "version 2 or 3", "version 1"]);
    assert_rejected(&Writer { version: 4, ..small() }, &["version 4"]);
    assert_rejected(&Writer { version: 3 << 24, ..small() }, &["version 3 in big-endian order"]);
    for huge in [1 << 20, 1 << 40, u64::MAX] {
        assert_rejected(
            &Writer { counts: Some([huge, 3]), ..small() },
            &["header", "tensors", &huge.to_string()],
        );
        assert_rejected(
            &Writer { counts: Some([1, huge]), ..small() },
            &["header", "keys", &huge.to_string()],
        );
    }
}

#[test]
fn rejects_every_truncated_file() {
    let full = small().finish();
    for length in 0..full.len() {
        error(full[..length].to_vec());
    }
}

#[test]
fn rejects_invalid_keys() {
    let huge = u64::MAX.to_le_bytes();
    let array = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    assert_rejected(&small().u32("a.count", 8), &["key a.count", "one value", "two of that key"]);
    assert_rejected(&small().u32("", 8), &["key number 3", "a name", "an empty one"]);
    assert_rejected(&small().raw("k", 13, &[]), &["key k", "type from 0", "type 13"]);
    assert_rejected(
        &small().raw("k", STRING, &huge),
        &["key k", "18446744073709551615 more bytes"],
    );
    assert_rejected(
        &small().raw("k", ARRAY, &array(U32, u64::MAX)),
        &["key k", "values of type u32"],
    );
    assert_rejected(
        &small().raw("k", ARRAY, &array(U32, 1 << 62)),
        &["key k", "4611686018427387904"],
    );
    assert_rejected(&small().raw("k", ARRAY, &array(STRING, 1 << 30)), &["key k", "1073741824"]);
    assert_rejected(
        &small().raw("k", ARRAY, &[&array(STRING, 1)[..], &huge].concat()),
        &["key k, string 0"],
    );
    assert_rejected(&small().raw("k", ARRAY, &array(ARRAY, 1)), &["key k", "an array of arrays"]);
    assert_rejected(&small().raw("k", ARRAY, &array(77, 1)), &["key k", "type 77"]);
    assert_rejected(&small().raw("k", BOOL, &[2]), &["key k", "0 or 1", "got 2"]);
    assert_rejected(&small().array("k", BOOL, &[vec![1], vec![9]]), &["key k", "0 or 1", "got 9"]);
    for alignment in [0, 3, 48, u32::MAX] {
        let writer = small().u32("general.alignment", alignment);
        assert_rejected(
            &writer,
            &["key general.alignment", "a power of two", &alignment.to_string()],
        );
    }
    assert_rejected(&small().f32("general.alignment", 32.0), &["key general.alignment"]);
    // A key that is too long is rejected by its length.
    let mut bytes = Writer { counts: Some([0, 1]), ..Writer::default() }.finish();
    bytes.truncate(24);
    bytes.extend(70_000_u64.to_le_bytes());
    bytes.resize(80_000, b'k');
    assert!(error(bytes).contains("at most 65535 bytes"));
    assert_eq!(string("ab").len(), 10);
}

#[test]
fn rejects_invalid_tensors() {
    assert_rejected(
        &small().f32_tensor("t", &[1], &[1.0]),
        &["tensor t", "one tensor", "two of that name"],
    );
    assert_rejected(
        &small().tensor_entry("u", 0, &[1, 1, 1, 1, 1], 0),
        &["tensor u", "at most 4 dimensions", "5"],
    );
    assert_rejected(
        &small().tensor_entry("u", 0, &[1 << 33, 1 << 33], 0),
        &["tensor u", "address space"],
    );
    assert_rejected(&small().tensor_entry("u", 0, &[u64::MAX, u64::MAX, 2, 2], 0), &["tensor u"]);
    assert_rejected(&small().tensor_entry("u", 8, &[1 << 62, 1 << 62], 0), &["tensor u"]);
    assert_rejected(
        &small().tensor_entry("u", 0, &[0, 4], 0),
        &["tensor u", "at least 1", "[0, 4]"],
    );
    assert_rejected(
        &small().tensor_entry("u", 2, &[33], 0),
        &["tensor u", "a multiple of 32 numbers, for type Q4_0", "33"],
    );
    assert_rejected(
        &small().tensor_entry("u", 0, &[4], 16),
        &["tensor u", "a multiple of 32", "16"],
    );
    assert_rejected(&small().tensor_entry("u", 0, &[4], 1 << 20), &["tensor u", "inside the file"]);
    assert_rejected(
        &small().tensor_entry("u", 0, &[4], u64::MAX - 31),
        &["tensor u", "inside the file"],
    );
    assert_rejected(&small().tensor_entry("u", 0, &[4], 0), &["no overlap", "bytes of tensor"]);
    assert_rejected(
        &small().tensor_entry(&"n".repeat(65), 0, &[4], 0),
        &["tensor number 1", "at most 64 bytes", "65"],
    );
    assert_rejected(&small().tensor_entry("", 0, &[4], 0), &["tensor number 1", "a name"]);
}

#[test]
fn reads_tensors_with_unusual_shapes_and_alignment() {
    let bytes = |size| vec![0; size];
    // The last tensor may end at the end of the file, but not after it.
    let writer = Writer::default().tensor("t", 24, &[33], &bytes(33));
    assert_eq!(open(&writer).tensor("t").unwrap().bytes(), 33);
    let mut cut = writer.finish();
    cut.pop();
    assert!(error(cut).contains("tensor t"));
    // The file has another alignment.
    let writer = Writer { alignment: 64, ..Writer::default() }.u32("general.alignment", 64);
    let writer = writer.tensor("a", 24, &[3], &[1, 2, 3]).tensor("b", 24, &[2], &[4, 5]);
    assert_eq!(open(&writer).tensor("b").unwrap().read().unwrap(), [4, 5]);
    assert_eq!(open(&writer).alignment(), 64);
    // A scalar, and a tensor with four dimensions.
    let writer = Writer::default().tensor("one", 0, &[], &2.5_f32.to_le_bytes());
    assert_eq!(open(&writer).tensor("one").unwrap().dequantize().unwrap(), [2.5]);
    let writer = Writer::default().tensor("four", 24, &[2, 3, 1, 2], &[7; 12]);
    assert_eq!(open(&writer).tensor("four").unwrap().shape(), [2, 1, 3, 2]);
    assert_eq!(F32, 6);
}

#[test]
fn errors_are_short_and_on_one_line() {
    let e = error(small().raw(&"k\n".repeat(30_000), 13, &[]).finish());
    assert!(e.len() < 400 && !e.contains('\n'), "{e}");
}

#[test]
fn rejects_files_that_are_not_regular() {
    let folder = tempfile::tempdir().unwrap();
    let assert_rejected = |path: &Path, got: &str| {
        let e = Gguf::open(path).unwrap_err().to_string();
        assert!(e.contains("expected a regular file") && e.contains(got), "{e}");
    };
    assert_rejected(folder.path(), "a directory");
    if Path::new("/dev/zero").exists() {
        assert_rejected(Path::new("/dev/zero"), "a pipe, a device or a socket");
    }
    #[cfg(unix)]
    {
        let pipe = folder.path().join("pipe.gguf");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        // The pipe has no writer, so opening it would block forever.
        assert_rejected(&pipe, "a pipe, a device or a socket");
    }
    let e = Gguf::open(&folder.path().join("none.gguf")).unwrap_err().to_string();
    assert!(e.contains("cannot read") && e.contains("none.gguf"), "{e}");
}

#[test]
fn reading_a_file_truncated_after_opening_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    std::fs::write(&path, small().finish()).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(40).unwrap();
    assert!(
        gguf.tensor("t").unwrap().dequantize().unwrap_err().to_string().contains("cannot read")
    );
}

fn shards(count: u32) -> Vec<(String, Writer)> {
    (0..count)
        .map(|number| {
            let name = format!("model-{:05}-of-{count:05}.gguf", number + 1);
            let writer = Writer::default().raw("split.no", 2, &(number as u16).to_le_bytes());
            let writer = writer.raw("split.count", 2, &(count as u16).to_le_bytes());
            let writer = writer.raw("split.tensors.count", I32, &(count as i32).to_le_bytes());
            let writer =
                if number == 0 { writer.str("general.architecture", "llama") } else { writer };
            (name, writer.f32_tensor(&format!("t.{number}"), &[1], &[number as f32]))
        })
        .collect()
}

#[test]
fn reads_split_models_and_rejects_inconsistent_shards() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let write =
        |(name, writer): &(String, Writer)| std::fs::write(path(name), writer.finish()).unwrap();
    let all = shards(3);
    all.iter().for_each(write);
    for (name, _) in &all {
        let gguf = Gguf::open(&path(name)).unwrap();
        assert_eq!(gguf.paths().len(), 3);
        assert_eq!(gguf.metadata().str("general.architecture").unwrap(), "llama");
        let values: Vec<f32> = gguf.tensors().flat_map(|t| t.dequantize().unwrap()).collect();
        assert_eq!(values, [0.0, 1.0, 2.0]);
        assert!(gguf.tensor("t.2").unwrap().path().ends_with(&all[2].0));
    }
    let e = |name: &str| Gguf::open(&path(name)).unwrap_err().to_string();

    std::fs::copy(path(&all[0].0), path("renamed.gguf")).unwrap();
    assert!(
        e("renamed.gguf").contains("a name that ends in -00001-of-00003.gguf"),
        "{}",
        e("renamed.gguf")
    );
    assert!(
        Gguf::from_bytes("m", all[0].1.finish()).unwrap_err().to_string().contains("in one file")
    );

    // A duplicate tensor, and one tensor too many.
    let (name, writer) = &all[2];
    write(&(name.clone(), writer.clone().f32_tensor("t.0", &[1], &[1.0])));
    assert!(
        e(&all[0].0).contains("tensor t.0: expected a tensor in one shard"),
        "{}",
        e(&all[0].0)
    );
    write(&(name.clone(), writer.clone().f32_tensor("t.3", &[1], &[1.0])));
    assert!(
        e(&all[0].0).contains("key split.tensors.count: expected 3 tensors, got 4"),
        "{}",
        e(&all[0].0)
    );
    // A shard with another number, a file that is not a shard, a missing shard.
    std::fs::copy(path(&all[1].0), path(name)).unwrap();
    assert!(
        e(&all[0].0).contains("shards: expected shard 3 of 3, got shard 2 of 3"),
        "{}",
        e(&all[0].0)
    );
    write(&(name.clone(), small()));
    assert!(
        e(&all[0].0).contains("expected shard 3 of 3, got a file without shard number"),
        "{}",
        e(&all[0].0)
    );
    std::fs::remove_file(path(name)).unwrap();
    let missing = e(&all[1].0);
    assert!(missing.contains(name) && missing.contains("expected shard 3 of 3"), "{missing}");
}

#[test]
fn rejects_invalid_shard_numbers() {
    let shard = |number: u32, count: u32| {
        Writer::default().u32("split.no", number).u32("split.count", count)
    };
    assert_rejected(&shard(3, 3), &["key split.no", "a number below 3", "3"]);
    assert_rejected(&shard(0, 100_000), &["key split.count", "at most 99999"]);
    assert_rejected(&Writer::default().u32("split.count", 2), &["key split.no", "no such key"]);
    // A single shard is a full model.
    open(&shard(0, 1));
}
