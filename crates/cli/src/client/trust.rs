//! Whom a client believes to be its server, where they speak TLS.

use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

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
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
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
        let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        connected.map_err(|error| not_secured(authority, &host, &error))
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

/// Why there is no trust, and what can be done about it.
fn not_secured(authority: &str, host: &str, error: &io::Error) -> Fail {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let (what, hint) = match inner {
        Some(Error::InvalidMessage(_)) => {
            let hint = "give the server a certificate (`--tls-certificate`), or write \
                        `HET_SERVER=http://HOST:PORT` where the network is the machine's own";
            return Fail::new(code::UNREACHABLE, format!("`{authority}` does not speak TLS"))
                .hint(hint);
        }
        Some(Error::InvalidCertificate(why)) => distrust(host, why),
        _ => {
            let text = format!("TLS with `{authority}` failed: {error}");
            return Fail::new(code::UNREACHABLE, text).hint("see the server's log");
        }
    };
    let text = format!("`{authority}` is not to be trusted: {what}");
    Fail::new(code::UNREACHABLE, text).hint(hint)
}

/// What is wrong with a server's certificate, and what can be done about it.
fn distrust(host: &str, why: &CertificateError) -> (String, String) {
    match why {
        CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => (
            "its certificate names no host".to_owned(),
            format!(
                "make one with a subject alternative name: \
                 `openssl req -x509 … -addext subjectAltName=DNS:{host}`"
            ),
        ),
        CertificateError::NotValidForNameContext { presented, .. } => (
            format!("its certificate is not for `{host}`"),
            format!("ask for it by a name that it is for: {}", presented.join(", ")),
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
            "its certificate has expired".to_owned(),
            "renew it and start the server again; if it has not expired, check this machine's \
             clock"
                .to_owned(),
        ),
        // A bad signature is that of another who bears the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => (
            "nobody whom this machine trusts has signed its certificate".to_owned(),
            "name the certificate of who signed it: `HET_CA=FILE`".to_owned(),
        ),
        why => (
            why.to_string(),
            "name the server's own certificate, or that of who signed it: `HET_CA=FILE`".to_owned(),
        ),
    }
}

/// The usual rules; and a certificate that was named itself is believed although nobody signed it
/// for a server, as `openssl req -x509` makes them. How long it is good for is not looked at then:
/// whoever named it can take it back.
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener as PlainListener};
    use std::thread;

    use tokio::net::TcpListener;
    use tokio::runtime::Builder;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;

    use super::*;

    /// A certificate that signed itself for these names, and its key.
    fn self_signed(names: &[&str]) -> (rcgen::Certificate, rcgen::KeyPair) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = rcgen::KeyPair::generate().expect("a key can be made");
        let wanted = rcgen::CertificateParams::new(names).expect("names");
        (wanted.self_signed(&key).expect("a certificate can be made"), key)
    }

    /// What a client is told that trusts `trusted` and reaches a server with the other certificate
    /// as `localhost`.
    fn told(
        server: &(rcgen::Certificate, rcgen::KeyPair),
        trusted: &rcgen::Certificate,
    ) -> Option<Fail> {
        let file = tempfile::NamedTempFile::new().expect("a file can be made");
        std::fs::write(file.path(), trusted.pem()).expect("it is writable");
        let key = PrivateKeyDer::try_from(server.1.serialize_der()).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the usual versions")
            .with_no_client_auth()
            .with_single_cert(vec![server.0.der().clone()], key)
            .expect("they go together");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
            let address = listener.local_addr().expect("it has an address");
            tokio::spawn(async move {
                let (stream, _) = listener.accept().await.expect("somebody comes");
                drop(acceptor.accept(stream).await);
            });
            let stream = TcpStream::connect(address).await.expect("somebody listens");
            let trust = Trust::File(file.path().to_owned());
            let authority = format!("localhost:{}", address.port());
            trust.secure(stream, &authority).await.err()
        })
    }

    #[track_caller]
    fn check(told: Option<Fail>, what: &str, hinted: &str) {
        let Some(Fail::Told { message, hint, .. }) = told else { panic!("it is trusted") };
        assert!(message.contains(what), "{message}");
        assert!(hint.as_deref().unwrap_or_default().contains(hinted), "{hint:?}");
    }

    #[test]
    fn each_kind_of_distrust_has_its_hint() {
        let own = self_signed(&["localhost"]);
        assert!(told(&own, &own.0).is_none());
        check(told(&own, &self_signed(&["other"]).0), "nobody whom", "HET_CA");
        let other = self_signed(&["het.example.org"]);
        check(told(&other, &other.0), "not for `localhost`", "het.example.org");
        let nameless = self_signed(&[]);
        check(told(&nameless, &nameless.0), "names no host", "subjectAltName=DNS:localhost");
    }

    #[test]
    fn a_server_in_the_clear_is_told_from_one_that_is_not_trusted() {
        let server = PlainListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = server.local_addr().expect("it has an address");
        let answers = thread::spawn(move || {
            let (mut stream, _) = server.accept().expect("somebody comes");
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("it listens");
        });
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let fail = runtime.block_on(async {
            let stream = TcpStream::connect(address).await.expect("somebody listens");
            Trust::System.secure(stream, "localhost:1").await.expect_err("no TLS")
        });
        answers.join().expect("it answers");
        check(Some(fail), "does not speak TLS", "--tls-certificate");
    }
}
