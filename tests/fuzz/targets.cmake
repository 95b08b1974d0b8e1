# fuzz_targets: the parsers that are fuzzed, and fuzz_sources: the files that define them. A target is
# NAME:FILE:PARSER: tests/fuzz/FILE.cpp defines fuzz_NAME over src/PARSER. A parser that has moved is an error,
# because its target would otherwise vanish unseen.
set(all_fuzz_targets
  safetensors:fuzz_safetensors:formats/safetensors.h gguf:fuzz_gguf:formats/gguf/gguf.h
  llama2c:fuzz_llama2c:formats/llama2c.h mingpt_json:fuzz_mingpt_json:formats/mingpt_json.h
  toml:fuzz_toml:formats/toml.h manifest:fuzz_manifest:formats/checkpoint_dir.h
  run_state:fuzz_run_state:train/run_state.h
  tokenizer_json:fuzz_tokenizer:text/tokenizer/tokenizer.h tokenizer_lists:fuzz_tokenizer:text/tokenizer/tokenizer.h
  chat_template:fuzz_chat:text/chat/chat_template.h chat:fuzz_chat:text/chat/chat_template.h
  shards:fuzz_shards:data/shards.h metadata:fuzz_shards:data/shards.h
  eval_file:fuzz_eval_file:data/eval_file.cpp jsonl:fuzz_jsonl:data/jsonl.h
  parquet:fuzz_parquet:formats/parquet/parquet.h config_json:fuzz_config_json:model/files/folder.h
  adapter_json:fuzz_adapter_json:model/files/adapter.h
  regex:fuzz_grammar:grammar/regex_phrase.h json_schema:fuzz_grammar:grammar/json_schema.h
  reward_reply:fuzz_reward:rewards/reward_program.h
  uci:fuzz_chess:tasks/chess/uci_reply.h fen:fuzz_chess:tasks/chess/board.h http_body:fuzz_serve:serve/parse.h
  http_head:fuzz_http_head:http/http_head.h)
if(NOT hearth_beast)  # whose parser it is
  list(FILTER all_fuzz_targets EXCLUDE REGEX "^http_head:")
endif()
set(fuzz_targets "")
set(fuzz_sources ${CMAKE_CURRENT_LIST_DIR}/fuzz.cpp)
set(lines "")
foreach(target ${all_fuzz_targets})
  string(REPLACE ":" ";" parts ${target})
  list(GET parts 0 name)
  list(GET parts 1 file)
  list(GET parts 2 parser)
  if(NOT EXISTS ${CMAKE_SOURCE_DIR}/src/${parser})
    message(FATAL_ERROR "fuzz target ${name}: expected its parser at src/${parser}, got no such file")
  endif()
  list(APPEND fuzz_targets ${name})
  list(APPEND fuzz_sources ${CMAKE_CURRENT_LIST_DIR}/${file}.cpp)
  string(APPEND lines "HEARTH_FUZZ_TARGET(${name})\n")
endforeach()
list(REMOVE_DUPLICATES fuzz_sources)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/fuzz/fuzz_targets.inc CONTENT "${lines}")
set(fuzz_includes ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_CURRENT_LIST_DIR}/.. ${CMAKE_BINARY_DIR}/generated/fuzz)
