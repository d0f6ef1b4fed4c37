//! The few flags of `protoc` that build scripts use, answered by protox: writes a file descriptor set, generates no code.
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("protoc stand-in: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut args: impl Iterator<Item = String>) -> Result<(), String> {
    let (mut includes, mut files, mut out) = (Vec::<PathBuf>::new(), Vec::<PathBuf>::new(), None);
    let (mut imports, mut source_info) = (false, false);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--version" => {
                println!("libprotoc 31.0");
                return Ok(());
            }
            "--include_imports" => imports = true,
            "--include_source_info" => source_info = true,
            "-o" => out = Some(args.next().ok_or("-o needs a file")?),
            "-I" => includes.push(args.next().ok_or("-I needs a folder")?.into()),
            flag if flag.starts_with("-I") => includes.push(flag[2..].into()),
            flag if flag.starts_with("--experimental_") => {}
            flag if flag.starts_with('-') => return Err(format!("flag {flag} is not known; only descriptor sets are made")),
            file => files.push(file.into()),
        }
    }
    let out = out.ok_or("-o FILE is missing")?;
    let mut compiler = protox::Compiler::new(includes).map_err(|error| error.to_string())?;
    compiler.include_imports(imports).include_source_info(source_info);
    compiler.open_files(files).map_err(|error| error.to_string())?;
    std::fs::write(&out, compiler.encode_file_descriptor_set()).map_err(|error| format!("{out}: {error}"))
}
