"""`installed_repository`: a repository of links to a folder of this machine, which an environment variable names."""

def _installed_repository(ctx):
    folder = ctx.os.environ.get(ctx.attr.variable)
    if not folder:
        fail("{0} is not set. Use --repo_env={0}=FOLDER, as tools/bazel/check.sh does".format(ctx.attr.variable))
    for entry in ctx.path(folder).readdir():
        if entry.basename not in ["BUILD", "BUILD.bazel", "WORKSPACE"]:
            ctx.symlink(entry, entry.basename)
    ctx.symlink(ctx.attr.build_file, "BUILD.bazel")

installed_repository = repository_rule(
    implementation = _installed_repository,
    attrs = {
        "build_file": attr.label(mandatory = True),
        "variable": attr.string(mandatory = True),
    },
    environ = [
        "GTEST_DIR",
        "TENSORFLOW_DIR",
    ],
    local = True,
)
