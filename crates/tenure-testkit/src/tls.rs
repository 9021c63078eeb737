//! Certificates for one test, made with the `openssl` command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::clock::ShiftedClock;

const EXTENSIONS: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = tenure test
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = CA:FALSE
subjectAltName = DNS:localhost, IP:127.0.0.1, IP:::1
extendedKeyUsage = serverAuth
[client]
basicConstraints = CA:FALSE
subjectAltName = DNS:client
extendedKeyUsage = clientAuth
";

/// A certificate authority, and a server (`localhost`, `127.0.0.1`, `::1`) and a client certificate it signed, as PEM
/// files.
#[derive(Clone, Debug)]
pub struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    /// Makes all of them in `dir`, which must exist; two calls make two authorities that do not trust each other.
    pub fn generate(dir: &Path) -> Self {
        let made = Self { dir: dir.to_owned() };
        fs::write(dir.join("openssl.cnf"), EXTENSIONS).expect("the certificate directory can be written");
        made.key("ca");
        made.openssl("req -new -x509 -days 3650 -config openssl.cnf -extensions ca -key ca.key -out ca.crt");
        made.sign("server");
        made.sign("client");
        made
    }

    /// As [`generate`](Self::generate), and the server's certificate ended ten years ago; needs a C compiler, for a clock of its own.
    pub fn generate_expired(dir: &Path) -> Self {
        const TWENTY_YEARS: i64 = 20 * 365 * 86_400_000;
        let (made, clock) = (Self::generate(dir), ShiftedClock::new());
        clock.shift(-TWENTY_YEARS);
        made.certify("server", |openssl| clock.apply(openssl));
        made
    }

    /// The authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// The server's certificate.
    pub fn server_cert(&self) -> PathBuf {
        self.dir.join("server.crt")
    }

    /// The server's private key (PKCS#8).
    pub fn server_key(&self) -> PathBuf {
        self.dir.join("server.key")
    }

    /// The client's certificate.
    pub fn client_cert(&self) -> PathBuf {
        self.dir.join("client.crt")
    }

    /// The client's private key (PKCS#8).
    pub fn client_key(&self) -> PathBuf {
        self.dir.join("client.key")
    }

    fn key(&self, who: &str) {
        self.openssl(&format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {who}.key"));
    }

    fn sign(&self, who: &str) {
        self.key(who);
        self.openssl(&format!("req -new -config openssl.cnf -key {who}.key -out {who}.csr"));
        self.certify(who, |_| {});
    }

    /// Has the authority sign what `who` asked for, for ten years from the present of the process.
    fn certify(&self, who: &str, change: impl FnOnce(&mut Command)) {
        let arguments = format!(
            "x509 -req -days 3650 -in {who}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile openssl.cnf \
             -extensions {who} -out {who}.crt"
        );
        self.openssl_with(&arguments, change);
    }

    fn openssl(&self, arguments: &str) {
        self.openssl_with(arguments, |_| {});
    }

    fn openssl_with(&self, arguments: &str, change: impl FnOnce(&mut Command)) {
        let mut command = Command::new("openssl");
        command.args(arguments.split(' ')).current_dir(&self.dir);
        change(&mut command);
        let output = command.output().unwrap_or_else(|error| {
            panic!("openssl cannot be run ({error}): install it (apt-get install openssl)");
        });
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {arguments} failed:\n{said}");
    }
}
