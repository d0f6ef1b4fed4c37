//! The log server's certificate, and whom a client's certificate names. It verifies nothing itself: a subject is read only of a
//! certificate that the TLS library has verified.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;

/// Why the log server has no certificate to show.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A file of a flag.
    #[error("--{0} {1}: {2}: give a PEM file")]
    File(&'static str, String, String),
    /// A certificate of its own could not be made.
    #[error("make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The TLS library refuses what it was given.
    #[error("certificate or key not usable: {0}")]
    Tls(#[from] rustls::Error),
    /// The clients' authority is not usable.
    #[error("--client-ca: {0}")]
    Clients(#[from] rustls::server::VerifierBuilderError),
}

/// Where certificates are.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// Certificate and key of the server; made when there are none.
    pub server: Option<(PathBuf, PathBuf)>,
    /// The authority of clients.
    pub clients: Option<PathBuf>,
}

/// What the log server speaks TLS with, at `address`.
///
/// # Errors
/// [`CertificateError`] names the flag.
pub fn server(address: IpAddr, node: &str, files: &Files) -> Result<ServerConfig, CertificateError> {
    let (chain, key) = match &files.server {
        Some((certificate, key)) => {
            let unread = |error: &dyn std::fmt::Display| {
                CertificateError::File("tls-key", key.display().to_string(), error.to_string())
            };
            (read("tls-cert", certificate)?, PrivateKeyDer::from_pem_file(key).map_err(|error| unread(&error))?)
        }
        None => own(address, node)?,
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match &files.clients {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for one in read("client-ca", path)? {
                roots.add(one)?;
            }
            // Who shows none may still have the token.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build()?)
        }
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let failed = |why: String| CertificateError::File(flag, path.display().to_string(), why);
    let all = CertificateDer::pem_file_iter(path).map_err(|error| failed(error.to_string()))?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(|error| failed(error.to_string()))?;
    if all.is_empty() { Err(failed("no certificate in it".into())) } else { Ok(all) }
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn own(address: IpAddr, node: &str) -> Result<Identity, CertificateError> {
    let mut parameters = CertificateParams::new(vec![address.to_string(), node.to_owned()])?;
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = parameters.self_signed(&key)?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Ok((vec![certificate.der().clone()], private))
}

/// Whom a certificate names, as Kubernetes reads it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subject {
    /// The common name: the user.
    pub user: String,
    /// The organizations: the groups.
    pub groups: Vec<String>,
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const OBJECT: u8 = 0x06;
const COMMON_NAME: [u8; 3] = [0x55, 4, 3];
const ORGANIZATION: [u8; 3] = [0x55, 4, 10];

/// Reads the subject of a DER certificate; none when it names no user.
pub fn subject(certificate: &[u8]) -> Option<Subject> {
    let (whole, _) = take(certificate, SEQUENCE)?;
    let (mut rest, _) = take(whole, SEQUENCE)?;
    if let Some((_, after)) = take(rest, VERSION) {
        rest = after;
    }
    // Serial number, algorithm, issuer, validity.
    for _ in 0..4 {
        rest = next(rest)?.2;
    }
    let (mut names, _) = take(rest, SEQUENCE)?;
    let mut found = Subject { user: String::new(), groups: Vec::new() };
    while !names.is_empty() {
        let (mut set, after) = take(names, SET)?;
        names = after;
        while !set.is_empty() {
            let (pair, after) = take(set, SEQUENCE)?;
            set = after;
            let (kind, value) = take(pair, OBJECT)?;
            let text = std::str::from_utf8(next(value)?.1).ok()?;
            if kind == COMMON_NAME {
                text.clone_into(&mut found.user);
            } else if kind == ORGANIZATION {
                found.groups.push(text.to_owned());
            }
        }
    }
    (!found.user.is_empty()).then_some(found)
}

/// The content of the first element if it has this tag, and what follows it.
fn take(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = next(bytes)?;
    (found == tag).then_some((content, rest))
}

/// The first element: its tag, its content, and what follows it.
fn next(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, bytes) = bytes.split_first()?;
    let (first, bytes) = bytes.split_first()?;
    let (length, bytes) = if *first < 0x80 {
        (usize::from(*first), bytes)
    } else {
        let count = usize::from(first & 0x7f);
        let digits = bytes.get(..count).filter(|_| (1..=4).contains(&count))?;
        (digits.iter().fold(0, |length, digit| (length << 8) | usize::from(*digit)), bytes.get(count..)?)
    };
    Some((*tag, bytes.get(..length)?, bytes.get(length..)?))
}

#[cfg(test)]
mod tests {
    use rcgen::{DistinguishedName, DnType};

    use super::*;

    fn certificate(pairs: &[(DnType, &str)]) -> Vec<u8> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        pairs.iter().for_each(|(kind, text)| parameters.distinguished_name.push(kind.clone(), *text));
        parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn a_subject_is_read_as_user_and_groups() {
        let long = "x".repeat(200);
        for (user, group) in [("kube-apiserver", "system:masters"), (&long, "ü")] {
            let der = certificate(&[(DnType::OrganizationName, group), (DnType::CommonName, user)]);
            let found = subject(&der).unwrap();
            assert_eq!((found.user.as_str(), found.groups), (user, vec![group.to_owned()]));
        }
        assert_eq!(subject(&certificate(&[(DnType::OrganizationName, "o")])), None, "nobody is named");
    }

    #[test]
    fn a_certificate_cut_anywhere_or_bent_is_no_subject_and_no_panic() {
        let der = certificate(&[(DnType::CommonName, "me")]);
        for end in 0..der.len() {
            assert_eq!(subject(&der[..end]), None);
        }
        for at in 0..der.len() {
            let mut bent = der.clone();
            bent[at] ^= 0xff;
            let _ = subject(&bent);
        }
    }
}
