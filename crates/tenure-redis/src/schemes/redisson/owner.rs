//! An owner as Redisson has it, and as we have it.

use tenure::Owner;

use crate::native::foreign::{DASHES, UUID};

/// The owner as Redisson has it: `<uuid>:<thread>`, where the thread of a generated token is its label
/// and a dot. So it is no number, as the threads of Java are.
pub(super) fn theirs(owner: &Owner) -> Owner {
    let Some(label) = owner.label() else { return owner.clone() };
    let digits = &owner.as_bytes()[label.len() + 1..];
    let mut field = Vec::with_capacity(UUID + label.len() + 2);
    for digit in digits {
        if DASHES.contains(&field.len()) {
            field.push(b'-');
        }
        field.push(*digit);
    }
    field.push(b':');
    field.extend_from_slice(label.as_bytes());
    field.push(b'.');
    Owner::from_bytes(field)
}

/// The owner that [`theirs`] has made a field of; any other as it is.
pub(super) fn ours(field: &[u8]) -> Owner {
    let token = field.split_at_checked(UUID).and_then(|(uuid, thread)| {
        let label = thread.strip_prefix(b":")?.strip_suffix(b".")?;
        let digits: Vec<u8> = uuid.iter().copied().filter(|byte| *byte != b'-').collect();
        Some(Owner::from_bytes([label, b".", &digits].concat()))
    });
    token.filter(|token| theirs(token).as_bytes() == field).unwrap_or_else(|| Owner::from_bytes(field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::foreign::is_owner_of_redisson;

    #[test]
    fn an_owner_is_a_field_and_back() {
        for label in ["web-1", "", "42", "a:b.", "x:write"] {
            let owner = Owner::generate(label).unwrap();
            let field = theirs(&owner);
            assert_eq!((&ours(field.as_bytes()), is_owner_of_redisson(field.as_bytes())), (&owner, true), "{field}");
            assert_eq!(ours(theirs(&owner.lingering()).as_bytes()), owner.lingering());
            assert!(theirs(&field) == field && !field.is_generated(), "{field}");
        }
        for foreign in ["00d0c0f4-3b6b-4d1c-8b7e-7f1d6f6f2a11:48", "00d0c0f4-3b6b-4d1c-8b7e-7f1d6f6f2a11:-7", "mine", ""] {
            let owner = Owner::from_bytes(foreign.as_bytes());
            assert_eq!((theirs(&owner), ours(foreign.as_bytes())), (owner.clone(), owner), "{foreign}");
            assert_eq!(is_owner_of_redisson(foreign.as_bytes()), foreign.len() > 36, "{foreign}");
        }
    }
}
