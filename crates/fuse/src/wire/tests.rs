use super::*;
use zerocopy::IntoBytes;

fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
    let len = (size_of::<RequestHeader>() + body.len()) as u32;
    let header = RequestHeader { len, opcode, unique: 7, nodeid: 1, ..RequestHeader::default() };
    [header.as_bytes(), body].concat()
}

#[test]
fn structures_are_as_long_as_the_kernels() {
    let lengths = [
        size_of::<RequestHeader>(),
        size_of::<Attr>(),
        size_of::<EntryOut>(),
        size_of::<SetattrIn>(),
        size_of::<ReadIn>(),
        size_of::<WriteIn>(),
        size_of::<StatfsOut>(),
        size_of::<InitOut>(),
        size_of::<IoctlIn>(),
        size_of::<CopyFileRangeIn>(),
        size_of::<Statx>(),
        size_of::<StatxOut>(),
        size_of::<FsXattr>(),
    ];
    assert_eq!(lengths, [40, 88, 128, 88, 40, 40, 80, 64, 32, 56, 256, 288, 28]);
}

#[test]
fn names_and_data_are_parts_of_the_request() {
    let mut body = Rename2In { newdir: 9, flags: 1, padding: 0 }.as_bytes().to_vec();
    body.extend_from_slice(b"old\0new\0");
    let bytes = request(opcode::RENAME2, &body);
    let parsed = Request::parse(&bytes).unwrap();
    let Some(Operation::Rename { newdir: 9, flags: 1, name: b"old", new_name: b"new" }) = parsed.operation
    else {
        panic!("{parsed:?}");
    };
    let mut body = WriteIn { fh: 3, offset: 5, size: 4, ..WriteIn::default() }.as_bytes().to_vec();
    body.extend_from_slice(b"data");
    let bytes = request(opcode::WRITE, &body);
    let parsed = Request::parse(&bytes).unwrap();
    let Some(Operation::Write { data: b"data", .. }) = parsed.operation else { panic!("{parsed:?}") };
}

#[test]
fn the_group_of_a_new_inode_is_an_extension() {
    let mut bytes = request(opcode::MKDIR, MkdirIn { mode: 0o755, umask: 0o22 }.as_bytes());
    bytes.extend_from_slice(b"dir\0\0\0\0\0");
    bytes.extend_from_slice(ExtensionHeader { size: 16, kind: EXT_GROUPS }.as_bytes());
    bytes.extend_from_slice([1u32, 50].as_bytes());
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    // `total_extlen`, in units of eight bytes.
    bytes[36..38].copy_from_slice(&2u16.to_ne_bytes());
    let parsed = Request::parse(&bytes).unwrap();
    assert_eq!(parsed.group, Some(50));
    assert!(matches!(parsed.operation, Some(Operation::Mkdir { name: b"dir", .. })), "{parsed:?}");
}

#[test]
fn an_unknown_operation_is_not_an_error() {
    assert!(Request::parse(&request(4711, b"whatever")).unwrap().operation.is_none());
}

#[test]
fn bytes_that_are_no_request_are_refused() {
    assert_eq!(Request::parse(b"").unwrap_err(), Malformed::Length);
    assert_eq!(Request::parse(&request(opcode::STATFS, b"")[..39]).unwrap_err(), Malformed::Length);
    assert_eq!(
        Request::parse(&[&request(opcode::STATFS, b"")[..], b"x"].concat()).unwrap_err(),
        Malformed::Length
    );
    for (code, body) in [
        (opcode::LOOKUP, &b"no end"[..]),
        (opcode::LOOKUP, b""),
        (opcode::RENAME, b"12345678old\0new"),
        (opcode::GETATTR, b"short"),
        (opcode::SYMLINK, b"name\0target"),
    ] {
        assert_eq!(Request::parse(&request(code, body)).unwrap_err(), Malformed::Body(7), "{code} {body:?}");
    }
    let write = WriteIn { size: 5, ..WriteIn::default() };
    let bytes = request(opcode::WRITE, &[write.as_bytes(), b"four"].concat());
    assert_eq!(Request::parse(&bytes).unwrap_err(), Malformed::Body(7));
    let forget = BatchForgetIn { count: u32::MAX, dummy: 0 };
    assert_eq!(
        Request::parse(&request(opcode::BATCH_FORGET, forget.as_bytes())).unwrap_err(),
        Malformed::Body(7)
    );
}

/// Every opcode with bodies of every length and some patterns is parsed or refused, and never
/// causes a panic.
#[test]
fn no_bytes_make_the_parser_panic() {
    for code in 0..60 {
        for len in 0..120 {
            for fill in [0, 1, b'a', 0xff] {
                let mut bytes = request(code, &vec![fill; len]);
                let _ = Request::parse(&bytes);
                for extensions in [1u16, 3, u16::MAX] {
                    bytes[36..38].copy_from_slice(&extensions.to_ne_bytes());
                    let _ = Request::parse(&bytes);
                }
            }
        }
    }
}
