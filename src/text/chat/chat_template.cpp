#include "text/chat/chat_template.h"

#include <algorithm>
#include <array>

#include "formats/json.h"
#include "sys/files/files.h"
#include "text/chat/gguf_chat_template.h"
#include "text/chat/python_str.h"
#include "text/chat/request.h"
#include "text/tokenizer/gguf_vocabulary.h"

namespace hearth::inline text {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct ChatTemplate::Parsed {
  std::string name, where, source;
  jinja::Block block;
  bool tags = false;  // it marks the assistant's answers itself
  ToolFormat tools = ToolFormat::none;
};

namespace {

constexpr std::array token_names = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};

bool has_generation(const jinja::Block& block) {
  return std::ranges::any_of(block, [](const jinja::Stmt& s) {
    return s.kind == jinja::Stmt::Kind::generation || has_generation(s.body) ||
           has_generation(s.otherwise) ||
           std::ranges::any_of(s.branches, [](auto& b) { return has_generation(b.second); });
  });
}

bool all_marked(const MarkedText& t, size_t from, size_t count, char bits, bool set) {
  return std::ranges::all_of(std::string_view(t.marks).substr(from, count),
                             [&](char m) { return ((m & bits) != 0) == set; });
}

// The template's text at the end of a conversation, without trailing whitespace.
std::string closing_text(const MarkedText& t) {
  const MarkedText kept = jinja::strip(t, jinja::Side::right);
  size_t begin = kept.size();
  while (begin > 0 && !(kept.marks[begin - 1] & mark::content)) --begin;
  return kept.bytes.substr(begin);
}

// The first occurrence of `text` at or after `from` that the template wrote.
size_t find_own(const MarkedText& in, std::string_view text, size_t from) {
  size_t at = in.bytes.find(text, from);
  while (at != std::string::npos && !all_marked(in, at, text.size(), mark::content, false))
    at = in.bytes.find(text, at + 1);
  return at;
}

// The end of an answer that starts at `begin`; `after` is the conversation up to and including the
// answer. npos if it cannot be determined.
size_t end_of_answer(const MarkedText& whole, const MarkedText& after, size_t begin) {
  if (whole.bytes.starts_with(after.bytes))
    return std::max(begin, jinja::strip(after, jinja::Side::right).size());
  const std::string closing = closing_text(after);
  const size_t at = closing.empty() ? std::string::npos : find_own(whole, closing, begin);
  return at == std::string::npos ? at : at + closing.size();
}

// The begins and ends of the stretches that are marked as answers.
std::vector<std::pair<size_t, size_t>> answer_spans(const MarkedText& t) {
  std::vector<std::pair<size_t, size_t>> spans;
  for (size_t i = 0; i < t.size(); ++i) {
    if (!(t.marks[i] & mark::answer)) continue;
    if (spans.empty() || spans.back().second != i) spans.emplace_back(i, i);
    spans.back().second = i + 1;
  }
  return spans;
}

}  // namespace

ordered_json special_tokens(const ordered_json& config) {
  ordered_json tokens = ordered_json::object();
  for (const char* name : token_names) {
    const auto it = config.find(name);
    if (it == config.end() || it->is_null()) continue;
    const ordered_json text = it->is_object() ? it->value("content", ordered_json()) : *it;
    if (text.is_string()) tokens[name] = text;
  }
  return tokens;
}

ChatTemplate::ChatTemplate(std::string_view source, std::string_view where,
                           const ordered_json& tokens)
    : tokens_(tokens) {
  add("default", source, where);
}

void ChatTemplate::add(std::string_view name, std::string_view source, std::string_view where) {
  auto p = std::make_shared<Parsed>();
  p->name = name;
  p->where = where;
  p->source = source;
  p->block = jinja::parse_template(source, where, jinja::Limits());
  p->tags = has_generation(p->block);
  p->tools = tool_format_of(source);
  parsed_.push_back(std::move(p));
}

namespace {

// The special tokens of a GGUF file that its template may refer to.
ordered_json special_tokens_of(const GgufTable& f) {
  ordered_json tokens = ordered_json::object();
  if (f.has("tokenizer.ggml.tokens"))
    for (const char* name : {"bos", "eos"}) {
      const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
      const std::vector<std::string_view> all = f.texts("tokenizer.ggml.tokens");
      if (!f.has(key)) continue;
      const int64_t id = f.whole(key);
      if (id < 0 || id >= int64_t(all.size()))
        fail(f.where, "expected {} below {}, got {}", key, all.size(), id);
      tokens[fmt::format("{}_token", name)] = std::string(all[size_t(id)]);
    }
  return tokens;
}

}  // namespace

bool ChatTemplate::exists(const fs::path& dir) {
  if (dir.extension() == ".gguf") return !gguf_chat_template(GgufFile(dir)).is_null();
  if (fs::exists(dir / "chat_template.jinja")) return true;
  const fs::path config = dir / "tokenizer_config.json";
  if (!fs::exists(config)) return false;
  const nlohmann::json j = read_json(config);
  return j.contains("chat_template") && !j["chat_template"].is_null();
}

ChatTemplate ChatTemplate::load(const fs::path& dir) {
  ChatTemplate all;
  const auto add_all = [&](const ordered_json& source, const std::string& where) {
    const std::vector<NamedTemplate> list = named_templates(source, where);
    for (const auto& [name, text] : list)
      all.add(name, text, source.is_string() ? where : where + " " + name);
  };
  if (dir.extension() == ".gguf") {
    const GgufFile f(dir);
    const ordered_json source = gguf_chat_template(f);
    if (source.is_null())
      fail(f.where, "this file has no chat template: expected tokenizer.chat_template");
    all.tokens_ = special_tokens_of(f);
    add_all(source, dir.string());
    return all;
  }
  const fs::path file = dir / "chat_template.jinja", config_file = dir / "tokenizer_config.json";
  const ordered_json config =
      fs::exists(config_file) ? ordered_json(read_json(config_file)) : ordered_json::object();
  all.tokens_ = special_tokens(config);
  const ordered_json source = config.value("chat_template", ordered_json());
  if (fs::exists(file)) {
    add_all(read_file(file), file.string());
    return all;
  }
  if (!source.is_string() && (!source.is_array() || source.empty()))
    fail(dir.string(),
         "this folder has no chat template: expected chat_template.jinja, or chat_template in "
         "tokenizer_config.json");
  add_all(source, config_file.string() + " chat_template");
  return all;
}

const ChatTemplate::Parsed& ChatTemplate::choose(const ChatRequest& request) const {
  const ordered_json& v = request.variables;
  const bool tools = v.is_object() && v.contains("tools") && !v["tools"].is_null();
  for (const std::string_view name : {tools ? "tool_use" : "default", "default"})
    for (const auto& p : parsed_)
      if (p->name == name) return *p;
  fail(parsed_[0]->where, "there is no template named default");
}

ToolFormat ChatTemplate::tool_format() const {
  for (const std::string_view name : {"tool_use", "default"})
    for (const auto& p : parsed_)
      if (p->name == name) return p->tools;
  return ToolFormat::none;
}

bool ChatTemplate::names(std::string_view word) const {
  return std::ranges::any_of(parsed_, [&](const auto& p) {
    return p->source.find(fmt::format("'{}'", word)) != std::string::npos ||
           p->source.find(fmt::format("\"{}\"", word)) != std::string::npos;
  });
}

bool ChatTemplate::mentions(std::string_view word) const {
  return std::ranges::any_of(
      parsed_, [&](const auto& p) { return p->source.find(word) != std::string::npos; });
}

MarkedText ChatTemplate::render(const ChatRequest& request) const {
  const Parsed& parsed = choose(request);
  jinja::Workspace w(jinja::Limits(), parsed.where);
  if (request.now) w.now = *request.now;
  return jinja::Renderer(w, jinja::request_scope(w, request, tokens_)).render(parsed.block);
}

// Unmarks the answers of some messages in a text whose template marks answers itself. A message's
// answers are those that the rendering up to it has and the rendering before it lacks.
MarkedText ChatTemplate::without_answers(MarkedText whole, const ChatRequest& request,
                                         std::span<const size_t> unlearned) const {
  const std::vector<std::pair<size_t, size_t>> spans = answer_spans(whole);
  ChatRequest part = request;
  part.messages = ordered_json::array();
  size_t done = 0;
  for (size_t i = 0; i < request.messages.size(); ++i) {
    part.messages.push_back(request.messages[i]);
    if (request.messages[i].value("role", "") != "assistant") continue;
    const size_t count = answer_spans(render(part)).size();
    if (count <= done || count > spans.size())
      fail(choose(request).where,
           "the {{% generation %}} blocks of message {} cannot be told from those of the others",
           i);
    const bool unmark = std::ranges::find(unlearned, i) != unlearned.end();
    for (; done < count; ++done)
      for (size_t k = spans[done].first; unmark && k < spans[done].second; ++k)
        whole.marks[k] &= char(~mark::answer);
  }
  return whole;
}

MarkedText ChatTemplate::render_answers(const ChatRequest& request,
                                        std::span<const size_t> unlearned) const {
  const Parsed& parsed = choose(request);
  MarkedText whole = render(request);
  if (parsed.tags)
    return unlearned.empty() ? whole : without_answers(std::move(whole), request, unlearned);
  ChatRequest part = request;
  part.messages = ordered_json::array();
  for (size_t i = 0; i < request.messages.size(); ++i) {
    const bool assistant = request.messages[i].value("role", "") == "assistant" &&
                           std::ranges::find(unlearned, i) == unlearned.end();
    if (assistant) part.add_generation_prompt = true;
    const MarkedText before = assistant ? render(part) : MarkedText();
    part.messages.push_back(request.messages[i]);
    if (!assistant) continue;
    part.add_generation_prompt = false;
    const size_t end = end_of_answer(whole, render(part), before.size());
    if (!whole.bytes.starts_with(before.bytes) || end == std::string::npos)
      fail(parsed.where,
           "the text before message {} depends on later messages, so the answers cannot be "
           "located: mark them in the template with {{% generation %}}",
           i);
    for (size_t k = before.size(); k < end; ++k) whole.marks[k] |= mark::answer;
  }
  return whole;
}

std::vector<int32_t> generation_ends(const std::filesystem::path& dir, const Tokenizer& tokenizer) {
  const auto exists = [&](int64_t id) { return id >= 0 && id < tokenizer.vocab_size(); };
  if (dir.extension() == ".gguf") {
    std::vector<int32_t> ends = text_ends(GgufFile(dir));
    std::erase_if(ends, [&](int32_t id) { return !exists(id); });
    return ends;
  }
  std::filesystem::path file = dir / "generation_config.json";
  if (!std::filesystem::exists(file)) file = dir / "config.json";  // as in transformers
  if (!std::filesystem::exists(file)) return {};
  nlohmann::json config;
  try {  // a broken file has no ends here; apply_generation_config() reports the error
    config = read_json(file, {.max_bytes = 16 << 20});
  } catch (const Error&) { return {}; }
  if (!config.is_object()) return {};
  const nlohmann::json ends = config.value("eos_token_id", nlohmann::json());
  std::vector<int32_t> ids;
  for (const nlohmann::json& id : ends.is_array() ? ends : nlohmann::json::array({ends}))
    if (id.is_number_integer() && exists(id.get<int64_t>())) ids.push_back(id.get<int32_t>());
  return ids;
}

int32_t turn_end(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  ordered_json turns = ordered_json::array();
  turns.push_back({{"role", "user"}, {"content", "a"}});
  turns.push_back({{"role", "assistant"}, {"content", "b"}});
  EncodedChat said;
  try {
    said = encode_chat(tokenizer, chat.render_answers({.messages = turns}));
  } catch (const Error&) { return -1; }  // the template rejects a conversation of two turns
  for (size_t i = said.ids.size(); i-- > 0;) {
    const int32_t id = said.ids[i];
    const bool blank =
        tokenizer.bytes_of(id).find_first_not_of(" \t\r\n") == std::string_view::npos;
    if (!said.answer[i] || blank) continue;
    return tokenizer.special(tokenizer.bytes_of(id)) == id ? id : -1;
  }
  return -1;
}

nlohmann::ordered_json written_chat_template(const std::filesystem::path& dir) {
  if (!ChatTemplate::exists(dir)) return {};
  if (dir.extension() == ".gguf") return gguf_chat_template(GgufFile(dir));
  if (fs::exists(dir / "chat_template.jinja")) return read_file(dir / "chat_template.jinja");
  const std::filesystem::path config = dir / "tokenizer_config.json";
  return parse_ordered_json(read_file(config), config.string()).at("chat_template");
}

void write_chat_template(const fs::path& dir, const nlohmann::ordered_json& chat) {
  if (chat.is_null()) return;
  const fs::path file = dir / "tokenizer_config.json";
  nlohmann::ordered_json config;
  if (fs::exists(file)) config = parse_ordered_json(read_file(file), file.string());
  if (chat.is_string()) {
    write_file_atomic(dir / "chat_template.jinja", chat.get<std::string>());
    if (!config.contains("chat_template")) return;
  }
  config["chat_template"] = chat;
  write_file_atomic(file, config.dump(1));
}

}  // namespace hearth::inline text
