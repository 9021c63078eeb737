//! TLS by rustls, for [`tokio_postgres`].

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tenure::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::tls::TlsConnect;
use tokio_rustls::client::TlsStream;

use super::session::{Announced, Watched};
use crate::table::Files;

/// Reads the files. `checks`: the server's certificate is checked, also without a `ca`.
pub(super) fn config(files: &Files, checks: bool) -> Result<Arc<ClientConfig>, Error> {
    // An application that has chosen a provider keeps it.
    let provider = CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()));
    let unusable = |error: rustls::Error| Error::invalid("the TLS settings cannot be used").with_source(error);
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().map_err(unusable)?;
    let builder = if checks || files.ca.is_some() {
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(files)?), provider).build();
        let no_roots =
            |error| Error::invalid("no certificate of an authority is known").with_source(error).with_hint("name one: ca=");
        builder.with_webpki_verifier(verifier.map_err(no_roots)?)
    } else {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked(provider)))
    };
    let Some((cert, key)) = files.pair()? else { return Ok(Arc::new(builder.with_no_client_auth())) };
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
    builder.with_client_auth_cert(chain, private).map(Arc::new).map_err(unusable)
}

fn roots(files: &Files) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    match &files.ca {
        Some(ca) => {
            for certificate in certificates(ca)? {
                roots.add(certificate).map_err(|error| unreadable(ca, &error))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| unreadable(path, &error))?;
    if found.is_empty() { Err(unreadable(path, &"it has no certificate")) } else { Ok(found) }
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::invalid(format!("the TLS file {} cannot be read: {why}", path.display()))
        .with_hint("name a readable PEM file in the store URL")
}

/// Takes any certificate, as `sslmode=prefer` and `require` of libpq do. The signatures are checked.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// TLS for one connection.
pub(super) struct Connector {
    pub(super) config: Arc<ClientConfig>,
    pub(super) host: String,
    pub(super) announced: Announced,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Connector {
    type Stream = Watched<TlsStream<S>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Stream>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let host = ServerName::try_from(self.host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let stream = tokio_rustls::TlsConnector::from(self.config).connect(host, stream).await?;
            Ok(Watched::new(stream, self.announced, false))
        })
    }
}
