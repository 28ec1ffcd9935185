use polydraft_text::*;
fn main() {
    let mut files: Vec<_> = std::fs::read_dir("/tmp/w/templates").unwrap().map(|f| f.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "jinja")).collect();
    files.sort();
    let only = std::env::args().nth(1);
    for f in files {
        let name = f.file_stem().unwrap().to_string_lossy().into_owned();
        if only.as_ref().is_some_and(|o| !name.contains(o.as_str())) { continue; }
        let text = std::fs::read_to_string(&f).unwrap();
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let tokens = SpecialTokens::from_roles([("bos_token", "<BOS>"), ("eos_token", "<EOS>")]);
        let t = match ChatTemplate::from_source(text, tokens, &f) { Ok(t) => t, Err(e) => { println!("== {name}: {e}"); continue } };
        let start = std::time::Instant::now();
        let o = t.output_form();
        println!("== {name} tools {} text {} channels {} {:?}", o.lists_tools, o.takes_argument_text, o.has_channels, start.elapsed());
        println!("   R {:?}", o.reasoning);
        match &o.calls { None => println!("   C none"), Some(c) => {
            println!("   C [{:?} sep {:?} close {:?} several {} trigger {:?}]", c.opening, c.separator, c.closing, c.allows_several, c.trigger());
            println!("     head {:?} tail {:?}", c.head, c.tail);
            match &c.arguments { ArgumentForm::Json => println!("     json"), ArgumentForm::Parameters(p) => { println!("     key {:?} sep {:?} {:?} sorted {}", p.before_key, p.separator, p.nested, p.sorted); for v in &p.values { println!("       {:?} {:?}", v.before, v.after); } } }
        } }
    }
}
