//! Whom a client believes to be its server, where they speak TLS.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use crate::fail::{Fail, code};

/// Who may vouch for a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Those whom this machine trusts.
    System,
    /// Those in a PEM file (`HET_CA`), and nobody else.
    File(PathBuf),
}

impl Trust {
    /// The same connection behind TLS, with a server that was vouched for.
    pub async fn secure(
        &self,
        stream: TcpStream,
        authority: &str,
    ) -> Result<TlsStream<TcpStream>, Fail> {
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|_| {
            Fail::new(code::USAGE, format!("`{host}` is neither a host's name nor an address"))
                .hint("write `HET_SERVER=https://HOST:PORT`")
        })?;
        let config = self.config()?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| {
            Fail::new(code::UNREACHABLE, format!("`{authority}` is not to be trusted: {error}"))
                .hint("name the certificate of who signed its own: `HET_CA=FILE`")
        })
    }

    fn config(&self) -> Result<ClientConfig, Fail> {
        let broken = |error: &dyn fmt::Display| Fail::new(code::FAILED, error.to_string());
        let provider = Arc::new(ring::default_provider());
        let (roots, named) = self.roots()?;
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let usual = usual.build().map_err(|error| broken(&error))?;
        let config = ClientConfig::builder_with_provider(provider);
        let config =
            config.with_safe_default_protocol_versions().map_err(|error| broken(&error))?;
        let verifier = Arc::new(Verifier { usual, named });
        Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
    }

    /// Who may vouch, and the certificates that were named themselves.
    fn roots(&self) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), Fail> {
        let mut roots = RootCertStore::empty();
        let mut named = Vec::new();
        match self {
            Self::System => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            Self::File(path) => {
                let broken = |error: &dyn fmt::Display| {
                    let text = format!("`{}` holds no certificates: {error}", path.display());
                    Fail::new(code::USAGE, text).hint("`HET_CA` has to name a PEM file")
                };
                let found = CertificateDer::pem_file_iter(path).map_err(|error| broken(&error))?;
                for certificate in found {
                    let certificate = certificate.map_err(|error| broken(&error))?;
                    roots.add(certificate.clone()).map_err(|error| broken(&error))?;
                    named.push(certificate);
                }
            }
        }
        if roots.is_empty() {
            let text = "there is nobody who could vouch for a server";
            return Err(Fail::new(code::USAGE, text).hint("name a PEM file: `HET_CA=FILE`"));
        }
        Ok((roots, named))
    }
}

/// The usual rules; and a certificate that was named itself is believed although nobody signed it
/// for a server, as `openssl req -x509` makes them.
#[derive(Debug)]
struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.named.iter().any(|named| named == end_entity) {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            verify_server_name(&certificate, server_name)?;
            return Ok(ServerCertVerified::assertion());
        }
        self.usual.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}
