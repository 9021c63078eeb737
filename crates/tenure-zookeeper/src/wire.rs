//! The requests of ZooKeeper and its answers, as bytes.

pub(crate) const CREATE: i32 = 1;
pub(crate) const DELETE: i32 = 2;
pub(crate) const EXISTS: i32 = 3;
pub(crate) const GET_DATA: i32 = 4;
pub(crate) const SET_DATA: i32 = 5;
pub(crate) const SYNC: i32 = 9;
pub(crate) const PING: i32 = 11;
pub(crate) const LIST: i32 = 12;
pub(crate) const CHECK: i32 = 13;
pub(crate) const MULTI: i32 = 14;
pub(crate) const CREATE_CONTAINER: i32 = 19;
pub(crate) const AUTH: i32 = 100;
pub(crate) const CLOSE: i32 = -11;

pub(crate) const PERSISTENT: i32 = 0;
pub(crate) const EPHEMERAL_SEQUENTIAL: i32 = 3;
pub(crate) const CONTAINER: i32 = 4;

pub(crate) const XID_EVENT: i32 = -1;
pub(crate) const XID_PING: i32 = -2;
pub(crate) const XID_AUTH: i32 = -4;

/// The code of the parts behind the one that failed.
const NOT_TRIED: i32 = -2;

/// All rights.
const ALL: i32 = 31;
const ANY_VERSION: i32 = -1;

/// Whether others may use a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acl {
    Open,
    /// Only those who log in as its creator did.
    Creator,
}

/// A request without its number.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) op: i32,
    pub(crate) body: Vec<u8>,
    /// The path that it watches.
    pub(crate) watch: Option<String>,
}

impl Frame {
    fn new(op: i32) -> Self {
        Self { op, body: Vec::new(), watch: None }
    }

    fn path(self, path: &str) -> Self {
        self.bytes(path.as_bytes())
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        put_bytes(&mut self.body, bytes);
        self
    }

    fn int(mut self, int: i32) -> Self {
        put_int(&mut self.body, int);
        self
    }

    fn flag(mut self, flag: bool) -> Self {
        self.body.push(u8::from(flag));
        self
    }

    pub(crate) fn create(op: i32, path: &str, data: &[u8], acl: Acl, flags: i32) -> Self {
        let (scheme, id): (&[u8], &[u8]) = match acl {
            Acl::Open => (b"world", b"anyone"),
            Acl::Creator => (b"auth", b""),
        };
        Self::new(op).path(path).bytes(data).int(1).int(ALL).bytes(scheme).bytes(id).int(flags)
    }

    pub(crate) fn delete(path: &str) -> Self {
        Self::new(DELETE).path(path).int(ANY_VERSION)
    }

    pub(crate) fn set_data(path: &str, data: &[u8]) -> Self {
        Self::new(SET_DATA).path(path).bytes(data).int(ANY_VERSION)
    }

    pub(crate) fn get_data(path: &str, watches: bool) -> Self {
        Self::new(GET_DATA).path(path).flag(watches).watching(path, watches)
    }

    /// Watches a path at which nothing is. The answer is empty then.
    pub(crate) fn exists(path: &str) -> Self {
        Self::new(EXISTS).path(path).flag(true).watching(path, true)
    }

    pub(crate) fn list(path: &str, watches: bool) -> Self {
        Self::new(LIST).path(path).flag(watches).watching(path, watches)
    }

    /// Has the server catch up with the leader, before it answers what comes behind.
    pub(crate) fn sync() -> Self {
        Self::new(SYNC).path("/")
    }

    fn watching(mut self, path: &str, watches: bool) -> Self {
        self.watch = watches.then(|| path.to_owned());
        self
    }

    /// Checks in one transaction that all these nodes are there.
    pub(crate) fn check_all<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        let each = |frame: Self, path| frame.int(CHECK).flag(false).int(-1).path(path).int(ANY_VERSION);
        paths.into_iter().fold(Self::new(MULTI), each).int(-1).flag(true).int(-1)
    }

    pub(crate) fn ping() -> Self {
        Self::new(PING)
    }

    pub(crate) fn close() -> Self {
        Self::new(CLOSE)
    }

    pub(crate) fn auth(user: &str, password: &str) -> Self {
        Self::new(AUTH).int(0).bytes(b"digest").bytes(format!("{user}:{password}").as_bytes())
    }

    /// Writes it with its number, behind its length.
    pub(crate) fn write(&self, xid: i32, out: &mut Vec<u8>) {
        put_int(out, i32::try_from(self.body.len() + 8).unwrap_or(i32::MAX));
        put_int(out, xid);
        put_int(out, self.op);
        out.extend_from_slice(&self.body);
    }
}

/// The first message of a connection.
pub(crate) fn connect(last_zxid: i64, timeout: i32, session: i64, password: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    put_int(&mut body, 0);
    body.extend(last_zxid.to_be_bytes());
    put_int(&mut body, timeout);
    body.extend(session.to_be_bytes());
    put_bytes(&mut body, password);
    // A server without the others is of no use: it cannot take a lock.
    body.push(0);
    let mut message = Vec::new();
    put_bytes(&mut message, &body);
    message
}

fn put_int(out: &mut Vec<u8>, int: i32) {
    out.extend(int.to_be_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_int(out, i32::try_from(bytes.len()).unwrap_or(i32::MAX));
    out.extend_from_slice(bytes);
}

/// The rest of an answer.
pub(crate) struct Reading<'a>(pub(crate) &'a [u8]);

impl<'a> Reading<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        Some(head)
    }

    pub(crate) fn int(&mut self) -> Option<i32> {
        self.take(4)?.try_into().ok().map(i32::from_be_bytes)
    }

    pub(crate) fn long(&mut self) -> Option<i64> {
        self.take(8)?.try_into().ok().map(i64::from_be_bytes)
    }

    /// A missing value has the length -1.
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        match usize::try_from(self.int()?) {
            Ok(length) => self.take(length),
            Err(_) => Some(&[]),
        }
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    fn flag(&mut self) -> Option<bool> {
        Some(self.take(1)?[0] != 0)
    }

    pub(crate) fn texts(&mut self) -> Option<Vec<String>> {
        let count = self.int()?;
        (0..count.max(0)).map(|_| self.text()).collect()
    }

    pub(crate) fn stat(&mut self) -> Option<Stat> {
        let (_czxid, mzxid) = (self.long()?, self.long()?);
        // Times, versions, owner, length and number of children.
        self.take(8 + 8 + 4 + 4 + 4 + 8 + 4 + 4)?;
        Some(Stat { mzxid, pzxid: self.long()? })
    }

    /// The code of a transaction: 0 if it was done.
    pub(crate) fn code(&mut self) -> Option<i32> {
        loop {
            let (op, is_last, _) = (self.int()?, self.flag()?, self.int()?);
            if is_last {
                return Some(0);
            }
            // All parts have a code then. Only one has the reason.
            if op == -1 {
                match self.int()? {
                    0 | NOT_TRIED => {}
                    code => return Some(code),
                }
            }
        }
    }
}

/// The part of a node's numbers that is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    /// The transaction that wrote its data last.
    pub(crate) mzxid: i64,
    /// The transaction that made or deleted a child of it last.
    pub(crate) pzxid: i64,
}

/// The answer to the first message.
pub(crate) struct Connected {
    pub(crate) timeout: i32,
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
}

impl Connected {
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let mut reading = Reading(body);
        reading.int()?;
        let (timeout, session) = (reading.int()?, reading.long()?);
        Some(Self { timeout, session, password: reading.bytes()?.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of a server to checks with these codes.
    fn transaction(codes: &[i32]) -> Vec<u8> {
        let mut answer = Vec::new();
        for code in codes {
            let is_refused = codes.iter().any(|code| *code != 0);
            put_int(&mut answer, if is_refused { -1 } else { CHECK });
            answer.push(0);
            put_int(&mut answer, *code);
            if is_refused {
                put_int(&mut answer, *code);
            }
        }
        answer.extend([&(-1_i32).to_be_bytes()[..], &[1], &(-1_i32).to_be_bytes()].concat());
        answer
    }

    #[test]
    fn a_transaction_says_why_it_was_not_done() {
        let code = |codes: &[i32]| Reading(&transaction(codes)).code();
        assert_eq!(code(&[0, 0]), Some(0));
        assert_eq!(code(&[0, -101, NOT_TRIED]), Some(-101));
        assert_eq!(code(&[-102]), Some(-102));
        assert_eq!(Reading(&transaction(&[0])[..5]).code(), None);
    }
}
