//! A process under test, for the tests of this crate.

fn main() -> std::io::Result<()> {
    tenure_lab::worker::serve(&std::env::args().skip(1).collect::<Vec<_>>())
}
