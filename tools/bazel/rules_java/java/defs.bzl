"""Replaces rules_java, which cannot be downloaded offline, by the rules that are built into Bazel."""

java_binary = native.java_binary
java_import = native.java_import
java_library = native.java_library
java_runtime = native.java_runtime
java_test = native.java_test
java_toolchain = native.java_toolchain
