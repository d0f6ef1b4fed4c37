//! The program `cellctl`: picks the TLS provider, runs the command line, exits with its code.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The only error is that a provider is installed already, which is what is wanted.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    cellctl::main()
}
