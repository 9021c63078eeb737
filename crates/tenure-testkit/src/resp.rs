//! Where one Redis protocol frame ends and the next begins (RESP2, RESP3 and inline commands).

/// The bytes are not the Redis protocol.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The length of the first request in `bytes`, none while it is incomplete.
pub(crate) fn request_len(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    match bytes.first() {
        None => Ok(None),
        Some(b'*') => frame_len(bytes),
        Some(byte) if byte.is_ascii_alphabetic() || byte.is_ascii_whitespace() => {
            Ok(bytes.iter().position(|&byte| byte == b'\n').map(|end| end + 1))
        }
        Some(_) => Err(Malformed),
    }
}

/// The length of the first reply or push in `bytes`, none while it is incomplete.
pub(crate) fn frame_len(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let mut at = 0;
    let mut pending = 1;
    while pending > 0 {
        let rest = &bytes[at..];
        let Some(&kind) = rest.first() else {
            return Ok(None);
        };
        if !b"+-:$*_#,(!=%~>|".contains(&kind) {
            return Err(Malformed);
        }
        let Some((line, head)) = line(rest) else {
            return Ok(None);
        };
        at += head;
        pending -= 1;
        match kind {
            b'$' | b'!' | b'=' => at += count(line)?.map_or(0, |length| length + 2),
            b'*' | b'~' | b'>' => pending += count(line)?.unwrap_or(0),
            b'%' => pending += 2 * count(line)?.unwrap_or(0),
            // Attributes stand before the frame they describe.
            b'|' => pending += 2 * count(line)?.unwrap_or(0) + 1,
            _ => {}
        }
        if at > bytes.len() {
            return Ok(None);
        }
    }
    Ok(Some(at))
}

/// The first line without its type byte and end, and how many bytes it takes.
pub(crate) fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((bytes.get(1..end).unwrap_or_default(), end + 2))
}

/// A length or count; none for the nil `-1`.
fn count(line: &[u8]) -> Result<Option<usize>, Malformed> {
    const MOST: i64 = 512 << 20;
    let number = std::str::from_utf8(line).ok().and_then(|text| text.parse::<i64>().ok());
    match number {
        Some(-1) => Ok(None),
        Some(number) if (0..=MOST).contains(&number) => Ok(usize::try_from(number).ok()),
        _ => Err(Malformed),
    }
}

/// The strings of a complete, flat array or push, as far as they are strings; the words of an inline command.
pub(crate) fn words(frame: &[u8]) -> Vec<&[u8]> {
    if !frame.starts_with(b"*") && !frame.starts_with(b">") {
        return frame.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
    }
    let mut words = Vec::new();
    let mut rest = line(frame).map_or(&[][..], |(_, head)| &frame[head..]);
    while rest.starts_with(b"$") {
        let Some((length, head)) = line(rest) else {
            break;
        };
        let Ok(Some(length)) = count(length) else {
            break;
        };
        let Some(word) = rest.get(head..head + length) else {
            break;
        };
        words.push(word);
        rest = rest.get(head + length + 2..).unwrap_or_default();
    }
    words
}

/// `words` as a request.
pub(crate) fn request<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
