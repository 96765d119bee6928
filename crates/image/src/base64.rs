//! Attribute values in text form.
use extant_format::UintExt;

/// Decodes base64 (RFC 4648, section 4); padding is optional.
pub fn base64_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.iter().rposition(|&byte| byte != b'=').map_or(&text[..0], |last| &text[..=last]);
    let padding = text.len() - digits.len();
    if digits.len() % 4 == 1 || (padding > 0 && (padding > 2 || !text.len().is_multiple_of(4))) {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for &digit in group {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        bits <<= 6 * (4 - group.len().fit_u32());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}
