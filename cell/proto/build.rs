//! Compiles the contracts with protox: no protoc is needed.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["common", "log", "data", "guild", "gateway", "store", "migrate"]
        .map(|name| format!("cellplane/v1/{name}.proto"));
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
