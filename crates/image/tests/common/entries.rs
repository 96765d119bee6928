//! Hand-made entries of tar archives.

/// A header of the given type; the name may be any bytes.
pub(crate) fn header(name: &[u8], kind: u8, size: u64) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..107].copy_from_slice(b"0000644");
    block[108..115].copy_from_slice(b"0000000");
    block[116..123].copy_from_slice(b"0000000");
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[136..147].copy_from_slice(b"14000000000");
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    checksummed(block)
}

pub(crate) fn checksummed(mut block: Vec<u8>) -> Vec<u8> {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

pub(crate) fn with_link(mut block: Vec<u8>, target: &[u8]) -> Vec<u8> {
    block[157..157 + target.len()].copy_from_slice(target);
    checksummed(block)
}

pub(crate) fn file(name: &[u8], content: &[u8]) -> Vec<u8> {
    let mut out = header(name, b'0', content.len() as u64);
    out.extend(content);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

pub(crate) fn pax(key: &str, value: &[u8]) -> Vec<u8> {
    let mut len = key.len() + value.len() + 3;
    while len.to_string().len() + key.len() + value.len() + 3 != len {
        len = len.to_string().len() + key.len() + value.len() + 3;
    }
    let mut record = format!("{len} {key}=").into_bytes();
    record.extend(value);
    record.push(b'\n');
    let mut out = header(b"pax", b'x', record.len() as u64);
    out.extend(record);
    out.resize(out.len().next_multiple_of(512), 0);
    out
}
